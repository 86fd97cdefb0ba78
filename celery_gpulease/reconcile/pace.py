"""The pace: a worker reconciles when beat asks, and by itself where no beat does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_gpulease.loops import Loop
from celery_gpulease.reconcile.corrections import BUDGET, reconcile

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger


class ReconcilePace(Loop):
    """Reconciles when woken, and when nobody has for an interval; one process at a time does."""

    def __init__(self, ledger: Ledger, who: str) -> None:
        super().__init__("reconcile")
        self._ledger, self._who, self._is_asked = ledger, who, False

    def wake(self) -> None:
        """Beat asks for a reconciliation."""
        self._is_asked = True
        super().wake()

    def turn(self) -> float:
        """Reconciles, unless somebody has just now."""
        interval = self._ledger.settings.reconcile_interval
        is_asked, self._is_asked = self._is_asked, False
        reconcile(self._ledger, self._who, age=interval / 2 if is_asked else interval, budget=BUDGET)
        return interval
