"""Tells Celery's monitors what the ledger has put back: `task-requeued`, by whatever hand.

A task is put back by its own worker, by the worker that finds another dead, by the reconciler or by an operator. All
write it into the journal, and one of the GPU workers that send events, whose turn it is, reads it there. Whoever starts
a task tells first what is untold: a monitor that hears of a requeue after its next start takes the running task for a
waiting one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease import events
from celery_gpulease.ledger.journal import take_entries, take_turn
from celery_gpulease.loops import Loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.installed import Installation

#: Seconds between two looks of the one whose turn it is.
LOOK_EVERY: Final = 1.0
#: Seconds after which another may have the turn, where that one looks no more.
TURN_LASTS: Final = 5.0
#: Seconds after which the others ask for the turn again.
ASK_EVERY: Final = 10.0
#: Seconds after which nobody is told any more: no worker sent events then.
OLD_AFTER: Final = 60.0


class Teller(Loop):
    """Reads the journal while this worker sends events.

    Args:
        installed: Of the worker's app.
        worker: Its name.
    """

    uses_celery = True

    def __init__(self, installed: Installation, worker: str) -> None:
        super().__init__("teller")
        self._installed, self._worker = installed, worker

    def turn(self) -> float:
        """Looks whether anything is new, where it is this worker's turn."""
        if not events.are_sent(self._installed.app):
            return LOOK_EVERY
        if not take_turn(self._installed.ledger, self._worker, TURN_LASTS):
            return ASK_EVERY
        for told in self._untold():
            events.send(self._installed.app, "task-requeued", **told)
        return LOOK_EVERY

    def tell(self, eventer: Any) -> None:
        """Tells what is new, a page at most, before a worker tells that a task is claimed. Called by its event loop.

        Args:
            eventer: The worker's own, which waits for no connection: what cannot be sent now, it keeps.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        if eventer and eventer.enabled and events.are_sent(self._installed.app):
            for told in self._untold():
                events.send_through(eventer, "task-requeued", **told)

    def _untold(self) -> Iterator[dict[str, Any]]:
        for entry in take_entries(self._installed.ledger):
            if entry.what == "requeued" and entry.task_id and time.time() - entry.at < OLD_AFTER:
                yield {"uuid": entry.task_id, "gpu": entry.gpu, "reason": entry.detail}
