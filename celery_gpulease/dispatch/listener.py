"""The listener: a thread of the worker's main process that waits for its GPU's lease to vanish.

Subscribe, then check, then wait; on waking, claim again. An event is a hint, the script decides; every (re)subscription
is treated as if every event had been missed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from celery.utils.log import get_logger

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.ledger.listening import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.dispatch.dispatcher import Dispatcher

logger = get_logger(__name__)

#: Seconds between two tries to reach Redis.
RETRY_EVERY: Final = 0.5
#: The longest wait, so that a stop is noticed.
LONGEST_WAIT: Final = 1.0


class Listener(threading.Thread):
    """Wakes its dispatcher.

    Args:
        dispatcher: Claims for the GPU.
        resync: Called at each (re)subscription, before everything is looked at again.
        on_lease_gone: Called when the lease's key vanished, by whatever hand.
        on_reconcile: Called when this worker shall reconcile.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        resync: Callable[[], None],
        on_lease_gone: Callable[[], None],
        on_reconcile: Callable[[], None],
    ) -> None:
        super().__init__(name="gpulease-listener", daemon=True)
        self._dispatcher = dispatcher
        self._resync, self._on_lease_gone, self._on_reconcile = resync, on_lease_gone, on_reconcile
        self._subscription = Subscription(dispatcher.ledger, dispatcher.gpu)
        self._is_over = threading.Event()
        self._pace = dispatcher.ledger.settings.heartbeat_interval
        self._take_at = self._tend_at = time.monotonic() + self._pace
        self._is_known_lost = False

    def run(self) -> None:
        """Listens until `stop`. Where Redis, or only the subscription, is away, the heartbeat's pace remains."""
        while not self._is_over.is_set():
            try:
                self._answer(self._subscription.wait(self._seconds_to_wait()))
                self._is_known_lost = False
            except LedgerUnavailable as error:
                self._say_lost(error)
                self._is_over.wait(RETRY_EVERY)
            with contextlib.suppress(LedgerUnavailable):  # said above: it is the same Redis
                self._do_what_is_due()
        self._subscription.close()

    def stop(self) -> None:
        """Ends the thread within a second."""
        self._is_over.set()

    def _seconds_to_wait(self) -> float:
        next_at = min(self._take_at, self._tend_at)
        return max(0.0, min(LONGEST_WAIT, next_at - time.monotonic()))

    def _answer(self, word: str | None) -> None:
        if word == "subscribed":
            self._resync()
        if word == "lease":
            self._on_lease_gone()
        if word == "reconcile":
            self._on_reconcile()
        if word in ("subscribed", "lease"):
            self._take()
        if word in ("subscribed", "due"):
            self._tend()

    def _do_what_is_due(self) -> None:
        if self._take_at <= time.monotonic():
            self._take()
        if self._tend_at <= time.monotonic():
            self._tend()

    def _take(self) -> None:
        self._take_at = time.monotonic() + self._pace
        self._take_at = self._planned(self._dispatcher.take())

    def _tend(self) -> None:
        self._tend_at = time.monotonic() + self._pace
        self._tend_at = self._planned(self._dispatcher.tend())

    def _planned(self, seconds: float | None) -> float:
        return time.monotonic() + min(self._pace, self._pace if seconds is None else seconds)

    def _say_lost(self, error: LedgerUnavailable) -> None:
        if not self._is_known_lost:
            logger.warning("The listener has lost Redis and tries again: %s", error)
        self._is_known_lost = True
