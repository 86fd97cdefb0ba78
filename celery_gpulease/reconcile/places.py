"""The rules for what only Redis knows: a ticket is in one place, and the keys of a GPU agree with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_gpulease.ledger.walk import walk
from celery_gpulease.reconcile.correction import Correction, isolated
from celery_gpulease.reconcile.gpus import correct_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.ledger.walk import Seen


def correct_places(ledger: Ledger, *, change: bool, budget: int | None) -> Iterator[Correction]:
    """Walks through the ledger, a part of it or all, and puts right what stands where it does not belong.

    Args:
        ledger: The ledger.
        change: False only says what would be done.
        budget: About how many names this walk looks at; None for all.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    for seen in walk(ledger, budget):
        yield from isolated(seen.ticket or seen.gpu, _corrections(ledger, seen, change=change))


def _corrections(ledger: Ledger, seen: Seen, *, change: bool) -> Iterator[Correction]:
    if seen.trouble:
        yield Correction("unreadable key", f"{seen.found_in}: {seen.trouble}", is_corrected=False)
    elif seen.gpu:
        yield from correct_keys(ledger, seen.gpu, seen.found_in, change=change)
    else:
        task_id, gpu, *wrong = ledger.correct_ticket(seen.ticket, seen.found_in, change=change)
        for words in wrong:
            yield Correction("ticket out of place", words, gpu, seen.ticket, task_id)
