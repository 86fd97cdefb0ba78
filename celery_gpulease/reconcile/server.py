"""The rules for the server: what it must do for us, and what strangers do there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.ledger.bare import bare_keys, taking_away
from celery_gpulease.ledger.notifications import FLAGS, are_missing, eviction_trouble, switch_on
from celery_gpulease.ledger.views import gpu_names
from celery_gpulease.reconcile.correction import Correction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger import Ledger


def correct_server(ledger: Ledger, *, change: bool) -> Iterator[Correction]:
    """Looks at the server's settings, and at what no GPU's worker answers for.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    yield from _flags(ledger, change=change)
    if trouble := eviction_trouble(ledger):
        yield Correction("eviction policy", trouble, is_corrected=False)
    for words in ledger.correct_counts(change=change):
        yield Correction("index out of step", words)
    if change:
        ledger.forget_lines()


def foreign_keys(ledger: Ledger) -> Iterator[Correction]:
    """Leases and wishes without a TTL, which are respected: who set them may never take them away.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    for what, gpu, key in bare_keys(ledger):
        cure = taking_away(ledger, what, gpu, key)
        detail = f"{ledger.client.get(key)!r} holds it for ever; if that is wrong, {cure}"
        yield Correction(f"{what} without TTL", detail, gpu, is_corrected=False)


def _flags(ledger: Ledger, *, change: bool) -> Iterator[Correction]:
    missing = are_missing(ledger)
    if missing is False:
        return
    try:
        trouble = switch_on(ledger) if change or missing is None else None
    except ConfigurationError as error:
        trouble = str(error)
    if trouble:
        yield Correction("flags", trouble, is_corrected=False)
    elif missing and gpu_names(ledger):  # nobody needed them before the first worker, which switches them on too
        yield Correction("flags", f"{FLAGS} lacked what we need")
