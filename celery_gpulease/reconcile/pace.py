"""The pace: a worker reconciles when beat asks, and by itself where no beat does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.reconcile.corrections import reconcile

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger

logger = get_logger(__name__)


class ReconcilePace(threading.Thread):
    """Reconciles when woken, and when nobody has for an interval; one process at a time does."""

    def __init__(self, ledger: Ledger, who: str) -> None:
        super().__init__(name="gpulease-reconcile", daemon=True)
        self._ledger, self._who = ledger, who
        self._is_wanted, self._is_over = threading.Event(), False

    def wake(self) -> None:
        """Beat asks for a reconciliation."""
        self._is_wanted.set()

    def stop(self) -> None:
        """Ends the thread after what it is at."""
        self._is_over = True
        self._is_wanted.set()

    def run(self) -> None:
        """Waits and reconciles until `stop`."""
        interval = self._ledger.settings.reconcile_interval
        while True:
            is_asked = self._is_wanted.wait(interval)
            if self._is_over:
                return
            self._is_wanted.clear()
            try:
                reconcile(self._ledger, self._who, age=interval / 2 if is_asked else interval)
            except LedgerUnavailable as error:
                logger.warning("Not reconciled: %s", error)
