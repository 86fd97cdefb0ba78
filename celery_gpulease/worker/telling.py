"""Tells Celery's monitors what the ledger has put back: `task-requeued`, by whatever hand.

A task is put back by its own worker, by the worker that finds another dead, by the reconciler or by an operator. All
write it into the journal, and one of the GPU workers that send events reads it there. Whoever starts a task tells
first what is untold: a monitor that hears of a requeue after its next start takes the running task for a waiting one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from celery_gpulease import events
from celery_gpulease.ledger.journal import take_entries
from celery_gpulease.loops import Loop

if TYPE_CHECKING:
    from celery_gpulease.installed import Installation
    from celery_gpulease.ledger.journal import Entry

#: Seconds between two looks.
LOOK_EVERY: Final = 1.0
#: Seconds after which nobody is told any more: no worker sent events then.
OLD_AFTER: Final = 60.0


class Teller(Loop):
    """Reads the journal while this worker sends events.

    Args:
        installed: Of the worker's app.
        worker: Its name.
    """

    def __init__(self, installed: Installation, worker: str) -> None:
        super().__init__("teller")
        self._installed, self._worker = installed, worker

    def turn(self) -> float:
        """Looks whether anything is new."""
        self.tell()
        return LOOK_EVERY

    def tell(self) -> None:
        """Tells what is new. Called by the event loop too, before it tells that a task is claimed.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        while events.are_sent(self._installed.app):
            entries = take_entries(self._installed.ledger, self._worker)
            for entry in entries:
                self._tell(entry)
            if not entries:
                break

    def _tell(self, entry: Entry) -> None:
        if entry.what == "requeued" and entry.task_id and time.time() - entry.at < OLD_AFTER:
            told = {"uuid": entry.task_id, "gpu": entry.gpu, "reason": entry.detail}
            events.send(self._installed.app, "task-requeued", **told)
