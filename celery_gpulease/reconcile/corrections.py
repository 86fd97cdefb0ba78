"""One reconciliation: looks at everything, corrects it, and says so in the log and in the journal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from celery.utils.log import get_logger

from celery_gpulease.reconcile.correction import isolated
from celery_gpulease.reconcile.gpus import correct_gpus
from celery_gpulease.reconcile.places import correct_places
from celery_gpulease.reconcile.server import correct_server, foreign_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.reconcile.correction import Correction

logger = get_logger(__name__)

#: What this process last said of the server.
_said: Final[set[str]] = set()
#: Lines of the log in one reconciliation for corrections of one kind.
MOST_SAID: Final = 20
#: Names that a reconciliation looks at, where it is one of many: the next one goes on from there.
BUDGET: Final = 1000


def reconcile(
    ledger: Ledger, who: str, *, age: float = 0.0, change: bool = True, budget: int | None = None
) -> list[Correction] | None:
    """One reconciliation now.

    Args:
        ledger: The ledger.
        who: A name for this process: one reconciles at a time.
        age: Seconds that must have passed since the last one began.
        change: False only says what would be done, and changes nothing.
        budget: About how many tickets it looks at, from where the last one stopped; None for all.

    Returns:
        What was corrected, and what only people can correct; None where another process has the turn, or had it just
        now.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    if not change:
        return list(_corrections(ledger, change=False, budget=None))
    if not ledger.take_turn(who, age):
        return None
    try:
        found, said = [], Counter[str]()
        for one in _corrections(ledger, change=True, budget=budget):
            found.append(one)
            if one.is_corrected:
                ledger.corrected(one.ticket, one.gpu, f"{one.kind}: {one.detail}")
            _say(one, said)
        for kind, number in said.items():
            if number > MOST_SAID:
                logger.warning("%s: %d more, which the journal has", kind, number - MOST_SAID)
        _say_of_server({one.detail for one in found if not one.is_corrected and not one.gpu})
        while ledger.agenda().due == 0 and any(ledger.promote()):
            pass
    finally:
        ledger.end_turn(who)
    return found


def _corrections(ledger: Ledger, *, change: bool, budget: int | None) -> Iterator[Correction]:
    said = set()  # a ticket is named by several keys, and a dry run finds it wrong each time
    parts = {
        "the server": correct_server(ledger, change=change),
        "the tickets": correct_places(ledger, change=change, budget=budget),
        "the GPUs": correct_gpus(ledger, change=change),
        "leases and wishes of strangers": foreign_keys(ledger),
    }
    for what, part in parts.items():
        for one in isolated(what, part):
            if one not in said:
                said.add(one)
                yield one


def _say(one: Correction, said: Counter[str]) -> None:
    """What one accident has broken may be thousands of the same kind."""
    words = "Reconciled %s" if one.is_corrected else "Left as it is: %s"
    if one.is_corrected or one.gpu:
        said[one.kind] += 1
        if said[one.kind] <= MOST_SAID:
            logger.warning(words, one)


def has_said(words: str) -> None:
    """This process has warned of the server already."""
    _said.add(words)


def _say_of_server(troubles: set[str]) -> None:
    """What the server does stays so for long, and this process reconciles often: each is said once while it lasts."""
    for words in sorted(troubles - _said):
        logger.warning("Left as it is: %s", words)
    _said.clear()
    _said.update(troubles)
