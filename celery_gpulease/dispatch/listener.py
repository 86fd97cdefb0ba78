"""The listener: a thread of the worker's main process that waits for its GPU's lease to vanish.

Subscribe, then check, then wait; on waking, claim again. An event is a hint, the script decides; every (re)subscription
is treated as if every event had been missed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from celery.utils.log import get_logger

from celery_gpulease.ledger.listening import Subscription
from celery_gpulease.loops import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.dispatch.dispatcher import Dispatcher

logger = get_logger(__name__)

#: The longest wait, so that a stop is noticed.
LONGEST_WAIT: Final = 1.0


class Listener(Loop):
    """Wakes its dispatcher.

    Args:
        dispatcher: Claims for the GPU.
        resync: Called before each subscription, and after it before everything is looked at again.
        on_lease_gone: Called when the lease's key vanished, by whatever hand.
        on_reconcile: Called when this worker shall reconcile.
        on_neighbour: Called when a worker has come to another GPU of this host.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        resync: Callable[[], None],
        on_lease_gone: Callable[[], None],
        on_reconcile: Callable[[], None],
        on_neighbour: Callable[[], None],
    ) -> None:
        super().__init__("listener")
        self._dispatcher = dispatcher
        self._resync, self._on_lease_gone = resync, on_lease_gone
        self._on_reconcile, self._on_neighbour = on_reconcile, on_neighbour
        self._subscription = Subscription(dispatcher.ledger, dispatcher.gpu, dispatcher.alias)
        self._pace = dispatcher.ledger.settings.heartbeat_interval
        self._take_at = self._tend_at = time.monotonic() + self._pace

    def run(self) -> None:
        """Listens until it is stopped."""
        super().run()
        self._subscription.close()

    def take_soon(self) -> None:
        """The GPU may be claimed again, and no event tells of it."""
        self._take_at = 0.0

    def turn(self) -> float:
        """Waits for one event. Where Redis, or only the subscription, is away, the heartbeat's pace remains."""
        try:
            if not self._subscription.is_open:
                self._resync()  # before the server takes this worker for alive, and its GPU for free
            self._answer(self._subscription.wait(self._seconds_to_wait()))
        except BaseException:
            self._subscription.close()  # the next turn subscribes again, and looks at everything
            raise
        finally:
            self._do_what_is_due()
        return 0.0

    def _seconds_to_wait(self) -> float:
        next_at = min(self._take_at, self._tend_at)
        return max(0.0, min(LONGEST_WAIT, next_at - time.monotonic()))

    def _answer(self, word: str | None) -> None:
        if word == "subscribed":
            self._resync()
        if word in ("subscribed", "lease"):
            self._take()
        if word == "lease":
            self._on_lease_gone()
        if word in ("subscribed", "due"):
            self._tend()
        if word == "reconcile":
            self._on_reconcile()
        if word in ("subscribed", "neighbour"):
            self._on_neighbour()

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
