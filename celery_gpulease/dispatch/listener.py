"""The listener: a thread of the worker's main process that waits for its GPU's lease to vanish.

Subscribe, then check, then wait; on waking, claim again. An event is a hint, the script decides; every (re)subscription
is treated as if every event had been missed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
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
#: Digits of a number that is no fence: those of a Lua number have fewer, and whatever stands there is somebody's.
LONGEST_FENCE: Final = 16
#: What wakes a listener, by the word that it hears; a word of anybody else's is none.
SOURCES: Final = {
    "lease": "event",
    "subscribed": "subscription",
    "due": "due",
    "reconcile": "reconcile",
    "neighbour": "neighbour",
}


@dataclass(frozen=True)
class Plan:
    """When to look without being told, and why then."""

    at: float
    why: str


class Listener(Loop):
    """Wakes its dispatcher.

    Args:
        dispatcher: Claims for the GPU.
        resync: Called before each subscription, and after it before everything is looked at again.
        on_lease_gone: Called when the lease's key vanished, by whatever hand.
        on_reconcile: Called when this worker shall reconcile.
        on_neighbour: Called when a worker has come to another GPU of this host.
        on_wake: Called with what has woken it: one of `SOURCES`, 'deadline' (a lease ends, something is due),
            'heartbeat' (its pace) or 'open' (its worker takes work again).
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        resync: Callable[[], None],
        on_lease_gone: Callable[[], None],
        on_reconcile: Callable[[], None],
        on_neighbour: Callable[[], None],
        on_wake: Callable[[str], None],
    ) -> None:
        super().__init__("listener")
        self._dispatcher = dispatcher
        self._resync, self._on_lease_gone = resync, on_lease_gone
        self._on_reconcile, self._on_neighbour, self._on_wake = on_reconcile, on_neighbour, on_wake
        self._subscription = Subscription(dispatcher.ledger, dispatcher.gpu, dispatcher.alias)
        self._pace = dispatcher.ledger.settings.heartbeat_interval
        self._next_take = self._next_tend = self._planned(None)

    def run(self) -> None:
        """Listens until it is stopped."""
        super().run()
        self._subscription.close()

    def take_soon(self) -> None:
        """The GPU may be claimed again, and no event tells of it."""
        self._next_take = Plan(0.0, "open")

    def turn(self) -> float:
        """Waits for one event. Where Redis, or only the subscription, is away, the heartbeat's pace remains."""
        try:
            if not self._subscription.is_open:
                self._resync()  # before the server takes this worker for alive, and its GPU for free
                self._dispatcher.recall()
            self._answer(self._subscription.wait(self._seconds_to_wait()))
        except BaseException:
            self._subscription.close()  # the next turn subscribes again, and looks at everything
            raise
        finally:
            self._do_what_is_due()
        return 0.0

    def _seconds_to_wait(self) -> float:
        next_at = min(self._next_take.at, self._next_tend.at)
        return max(0.0, min(LONGEST_WAIT, next_at - time.monotonic()))

    def _answer(self, word: str | None) -> None:
        if source := SOURCES.get(word or ""):
            self._on_wake(source)
        if word == "subscribed":
            self._resync()
            self._dispatcher.recall()
        if fence := _program(word or ""):
            self._dispatcher.program_fence = fence
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
        if self._is_due(self._next_take):
            self._take()
        if self._is_due(self._next_tend):
            self._tend()

    def _is_due(self, plan: Plan) -> bool:
        is_due = plan.at <= time.monotonic()
        if is_due:
            self._on_wake(plan.why)
        return is_due

    def _take(self) -> None:
        self._next_take = self._planned(None)
        self._next_take = self._planned(self._dispatcher.take())

    def _tend(self) -> None:
        self._next_tend = self._planned(None)
        self._next_tend = self._planned(self._dispatcher.tend())

    def _planned(self, seconds: float | None) -> Plan:
        if seconds is None or seconds >= self._pace:
            return Plan(time.monotonic() + self._pace, "heartbeat")
        return Plan(time.monotonic() + seconds, "deadline")


def _program(word: str) -> int:
    """The fence of the program that has started on this GPU; 0 where this word tells of none."""
    kind, _, fence = word.partition(" ")
    return int(fence) if kind == "program" and fence.isdecimal() and len(fence) < LONGEST_FENCE else 0
