"""The rules for one GPU: what is found → what is done. The scripts decide; what they decline is not said."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_gpulease.ledger.views import gpu_names
from celery_gpulease.reconcile.correction import Correction, isolated
from celery_gpulease.reconcile.evidence import EVENT_MS, gather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.reconcile.evidence import Evidence


def _wait_for_what_is_under_way() -> None:
    time.sleep(EVENT_MS / 1000)


def correct_gpus(
    ledger: Ledger, *, change: bool, wait: Callable[[], object] = _wait_for_what_is_under_way
) -> Iterator[Correction]:
    """Compares every registered GPU with its worker's own report.

    A GPU becomes free, or loses its worker, by what no script knows of, and a moment later its worker says so::

        worker        subscribes: the GPU is free                          CLAIM: nobody waits, so it is listed
        reconciler                                  free, and not listed

    So what seems to be missed is looked at once more after that moment, the same for all GPUs.

    Args:
        ledger: The ledger.
        change: False only says what would be done.
        wait: Waits for that moment.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    doubtful = list[str]()
    for gpu in gpu_names(ledger):
        yield from isolated(gpu, _correct_gpu(ledger, gpu, doubtful, change=change))
    if doubtful:
        wait()
    for gpu in doubtful:
        yield from isolated(gpu, _correct_index(ledger, gpu, change=change))


def _correct_gpu(ledger: Ledger, gpu: str, doubtful: list[str], *, change: bool) -> Iterator[Correction]:
    """Puts one GPU's keys right, then compares it with its worker's own report."""
    yield from correct_keys(ledger, gpu, change=change)
    seen = gather(ledger, gpu)
    for rule in (_job_without_lease, _idle_holder, _not_started, _lapsed_lease):
        if one := rule(ledger, seen, change=change):
            yield one
            seen = gather(ledger, gpu) if change else seen
    if seen.is_astray or seen.is_overlooked:
        doubtful.append(gpu)


def _correct_index(ledger: Ledger, gpu: str, *, change: bool) -> Iterator[Correction]:
    """Lets the GPU take work that waits for it; else what the index says of it is put right."""
    seen = gather(ledger, gpu)
    if one := _missed_event(ledger, seen, change=change) or _index_out_of_step(ledger, seen, change=change):
        yield one


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


def _job_without_lease(ledger: Ledger, seen: Evidence, *, change: bool) -> Correction | None:
    if seen.claim is None or seen.claim_state != "started" or seen.lease is not None or not seen.runs_its_claim:
        return None
    if change and ledger.renew(seen.claim) != "regained":
        return None
    return Correction("job without lease", "it runs, and takes its lease back", seen.gpu, seen.claim.ticket)


def _idle_holder(ledger: Ledger, seen: Evidence, *, change: bool) -> Correction | None:
    if seen.claim is None or not seen.is_idle:
        return None
    holds = seen.claim_state == "tail" or (seen.claim_state == "started" and seen.lease == seen.claim.token)
    if not holds:
        return None
    if change and ledger.requeue(seen.claim, "idle holder", counted=True) == "stale":
        return None
    detail = f"it was {seen.claim_state}, and its worker runs and holds nothing"
    return Correction("idle holder", detail, seen.gpu, seen.claim.ticket)


def _not_started(ledger: Ledger, seen: Evidence, *, change: bool) -> Correction | None:
    if seen.claim is None or seen.claim_state != "claimed" or not seen.is_lapsed:
        return None
    if change and ledger.reap(seen.gpu) != "reaped":
        return None
    return Correction("not started", "it was routed, and not started in time", seen.gpu, seen.claim.ticket)


def _lapsed_lease(ledger: Ledger, seen: Evidence, *, change: bool) -> Correction | None:
    if seen.claim is None or seen.claim_state == "claimed" or not seen.is_lapsed or seen.runs_its_claim:
        return None
    if change and ledger.reap(seen.gpu) != "reaped":
        return None
    return Correction("lapsed lease", f"it was {seen.claim_state}", seen.gpu, seen.claim.ticket)


def _index_out_of_step(ledger: Ledger, seen: Evidence, *, change: bool) -> Correction | None:
    if not seen.is_astray or seen.is_overlooked:  # a claim puts the index right
        return None
    if change:
        ledger.inspect(seen.gpu, change=True)
    if seen.is_alive:
        state = "free" if seen.is_claimable else "not free"
        return Correction("index out of step", f"the GPU is {state}", seen.gpu)
    return Correction("offline", "its worker is gone, and it was known as free", seen.gpu)


def _missed_event(ledger: Ledger, seen: Evidence, *, change: bool) -> Correction | None:
    if not seen.is_overlooked or (change and ledger.dispatch(seen.gpu) != "claimed"):
        return None
    return Correction("missed event", "free, and somebody waits", seen.gpu)
