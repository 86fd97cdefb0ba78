"""The corrections: what is found → what is done. Each is said in the log; the ledger's scripts decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_gpulease.ledger.views import gpu_names
from celery_gpulease.reconcile.evidence import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.reconcile.evidence import Evidence

logger = get_logger(__name__)


@dataclass(frozen=True)
class Correction:
    """What was found wrong with a GPU, and was put right (or would be, in a dry run)."""

    kind: str
    gpu: str
    detail: str

    def __str__(self) -> str:
        return f"{self.gpu}: {self.kind}: {self.detail}"


def reconcile(ledger: Ledger, who: str, *, age: float = 0.0, change: bool = True) -> list[Correction] | None:
    """One reconciliation now.

    Args:
        ledger: The ledger.
        who: A name for this process: one reconciles at a time.
        age: Seconds that must have passed since the last one began.
        change: False only says what would be done.

    Returns:
        What was corrected; None where another process has the turn, or had it just now.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    if change and not ledger.take_turn(who, age):
        return None
    try:
        found = [one for gpu in gpu_names(ledger) for one in correct_gpu(ledger, gpu, change=change)]
        while change and ledger.agenda().due == 0 and any(ledger.promote()):
            pass
    finally:
        if change:
            ledger.end_turn(who)
    for one in found if change else ():
        logger.warning("Reconciled %s", one)
    return found


def correct_gpu(ledger: Ledger, gpu: str, *, change: bool) -> Iterator[Correction]:
    """Compares one GPU with its worker's own report."""
    seen = gather(ledger, gpu)
    for rule in (_job_without_lease, _lapsed_lease, _index_out_of_step, _missed_event):
        if one := rule(ledger, seen, change):
            yield one
            seen = gather(ledger, gpu) if change else seen


def _job_without_lease(ledger: Ledger, seen: Evidence, change: bool) -> Correction | None:  # noqa: FBT001
    if seen.claim is None or seen.claim_state != "started" or seen.lease is not None or not seen.runs_its_claim:
        return None
    return _done(
        ledger.renew, seen.claim, change, Correction("job without lease", seen.gpu, f"ticket {seen.claim.ticket}")
    )


def _lapsed_lease(ledger: Ledger, seen: Evidence, change: bool) -> Correction | None:  # noqa: FBT001
    if seen.claim is None or not seen.is_lapsed or seen.runs_its_claim:
        return None
    detail = f"ticket {seen.claim.ticket} was {seen.claim_state}"
    correction = Correction("lapsed lease", seen.gpu, detail)
    return correction if not change or ledger.reap(seen.gpu) == "reaped" else None


def _index_out_of_step(ledger: Ledger, seen: Evidence, change: bool) -> Correction | None:  # noqa: FBT001
    if not seen.is_astray:
        return None
    state = "free" if seen.is_claimable else "not free"
    correction = Correction("index out of step", seen.gpu, f"the GPU is {state}")
    return _done(lambda gpu: ledger.inspect(gpu, change=True), seen.gpu, change, correction)


def _missed_event(ledger: Ledger, seen: Evidence, change: bool) -> Correction | None:  # noqa: FBT001
    if not (seen.is_claimable and seen.has_waiters):
        return None
    return _done(ledger.dispatch, seen.gpu, change, Correction("missed event", seen.gpu, "free, and somebody waits"))


def _done(act: Callable[..., object], what: object, change: bool, correction: Correction) -> Correction:  # noqa: FBT001
    if change:
        act(what)
    return correction
