"""The rules for one GPU: what is found → what is done. Each is small; the ledger's scripts decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_gpulease.ledger.views import gpu_names
from celery_gpulease.reconcile.correction import Correction, isolated
from celery_gpulease.reconcile.evidence import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.reconcile.evidence import Evidence


def correct_gpus(ledger: Ledger, *, change: bool) -> Iterator[Correction]:
    """Compares every registered GPU with its worker's own report.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    for gpu in gpu_names(ledger):
        yield from isolated(gpu, correct_gpu(ledger, gpu, change=change))


def correct_gpu(ledger: Ledger, gpu: str, *, change: bool) -> Iterator[Correction]:
    """Puts one GPU's keys right, then compares it with its worker's own report.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    yield from correct_keys(ledger, gpu, change=change)
    seen = gather(ledger, gpu)
    for rule in (_job_without_lease, _idle_holder, _not_started, _lapsed_lease, _missed_event, _index_out_of_step):
        if one := rule(ledger, seen, change):
            yield one
            seen = gather(ledger, gpu) if change else seen


def correct_keys(ledger: Ledger, gpu: str, found_in: str = "", *, change: bool) -> Iterator[Correction]:
    """Puts right what Redis alone can tell of one GPU.

    Args:
        ledger: The ledger.
        gpu: Its id.
        found_in: The key after the prefix that names it, else empty.
        change: False only says what would be done.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    for words in ledger.correct_gpu(gpu, found_in, change=change):
        yield Correction("GPU out of step", words, gpu)


def _job_without_lease(ledger: Ledger, seen: Evidence, change: bool) -> Correction | None:  # noqa: FBT001
    if seen.claim is None or seen.claim_state != "started" or seen.lease is not None or not seen.runs_its_claim:
        return None
    correction = Correction("job without lease", "it runs, and takes its lease back", seen.gpu, seen.claim.ticket)
    return _done(ledger.renew, seen.claim, change, correction)


def _idle_holder(ledger: Ledger, seen: Evidence, change: bool) -> Correction | None:  # noqa: FBT001
    if seen.claim is None or not seen.is_idle:
        return None
    holds = seen.claim_state == "tail" or (seen.claim_state == "started" and seen.lease == seen.claim.token)
    if not holds:
        return None
    detail = f"it was {seen.claim_state}, and its worker runs and holds nothing"
    correction = Correction("idle holder", detail, seen.gpu, seen.claim.ticket)
    return _done(lambda claim: ledger.requeue(claim, "idle holder", counted=True), seen.claim, change, correction)


def _not_started(ledger: Ledger, seen: Evidence, change: bool) -> Correction | None:  # noqa: FBT001
    if seen.claim is None or seen.claim_state != "claimed" or not seen.is_lapsed:
        return None
    correction = Correction("not started", "it was routed, and not started in time", seen.gpu, seen.claim.ticket)
    return _reaped(ledger, change, correction)


def _lapsed_lease(ledger: Ledger, seen: Evidence, change: bool) -> Correction | None:  # noqa: FBT001
    if seen.claim is None or seen.claim_state == "claimed" or not seen.is_lapsed or seen.runs_its_claim:
        return None
    correction = Correction("lapsed lease", f"it was {seen.claim_state}", seen.gpu, seen.claim.ticket)
    return _reaped(ledger, change, correction)


def _index_out_of_step(ledger: Ledger, seen: Evidence, change: bool) -> Correction | None:  # noqa: FBT001
    if not seen.is_astray or seen.is_forgotten:  # a claim puts the index right
        return None
    if seen.is_alive:
        state = "free" if seen.is_claimable else "not free"
        correction = Correction("index out of step", f"the GPU is {state}", seen.gpu)
    else:
        correction = Correction("offline", "its worker is gone, and it was known as free", seen.gpu)
    return _done(lambda gpu: ledger.inspect(gpu, change=True), seen.gpu, change, correction)


def _missed_event(ledger: Ledger, seen: Evidence, change: bool) -> Correction | None:  # noqa: FBT001
    if not seen.is_forgotten:
        return None
    return _done(ledger.dispatch, seen.gpu, change, Correction("missed event", "free, and somebody waits", seen.gpu))


def _reaped(ledger: Ledger, change: bool, correction: Correction) -> Correction | None:  # noqa: FBT001
    return correction if not change or ledger.reap(correction.gpu) == "reaped" else None


def _done(act: Callable[..., object], what: object, change: bool, correction: Correction) -> Correction:  # noqa: FBT001
    if change:
        act(what)
    return correction
