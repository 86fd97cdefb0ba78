"""The heartbeat of a program: a thread that keeps its lease."""

from __future__ import annotations

import logging
import time
from threading import Lock
from typing import TYPE_CHECKING, Final

from celery_gpulease.ledger.listening import Subscription
from celery_gpulease.loops import Loop
from celery_gpulease.settings import RETRY_EVERY

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.model import Claim

#: Not Celery's: in a process that has set up no loggers it would swallow what it is told.
logger = logging.getLogger(__name__)

#: The answers to RENEW by which the lease is there for another ttl.
KEPT: Final = ("renewed", "regained", "flushed")
#: The longest wait, so that a stop is noticed.
LONGEST_WAIT: Final = 1.0


class Keeper(Loop):
    """Renews one lease until it is stopped, also once it is lost: until then the GPU is not free.

    Its own renewals are the only proof that the program lives; no worker reports it.

    Args:
        ledger: The ledger.
        claim: What it keeps.
        ttl: Seconds that the lease outlives a renewal.
        on_lost: Called once, in this thread.
        on_renewed: Called with each moment, by the monotonic clock, from which the lease lasts for a ttl.

    Attributes:
        is_lost: The lease went to another holder, or was taken by force.
        how: What the journal will say of the end of whatever holds it; whoever knows sets it.
    """

    def __init__(
        self,
        ledger: Ledger,
        claim: Claim,
        ttl: float,
        on_lost: Callable[[], None],
        on_renewed: Callable[[float], None] = lambda _: None,
    ) -> None:
        super().__init__("program")
        self._pace = min(ledger.settings.heartbeat_interval, ttl / 3)  # the GPU's worker may have another ttl than we
        self._ledger, self._claim = ledger, claim
        self._on_lost, self._on_renewed = on_lost, on_renewed
        self._subscription = Subscription(ledger, claim.gpu, program=claim.ticket)
        self._asking = Lock()
        self._asked_at = time.monotonic()
        self._next_beat = self._asked_at + self._pace
        self.is_lost = False
        self.how = ""

    def run(self) -> None:
        """Keeps the lease until it is stopped."""
        super().run()
        self._subscription.close()

    def stop(self) -> None:
        """Ends the thread soon; from now on it asks nothing, so that what is released is not taken back."""
        with self._asking:
            super().stop()

    def turn(self) -> float:
        """Beats when it is time, or when it hears of the lease: at most twice a second, as a server may evict it."""
        if time.monotonic() >= self._next_beat:
            self._beat()
        if self._subscription.wait(max(0.0, min(LONGEST_WAIT, self._next_beat - time.monotonic()))):
            self._next_beat = min(self._next_beat, self._asked_at + RETRY_EVERY)
        return 0.0

    def _beat(self) -> None:
        with self._asking:
            if self.is_over:
                return
            self._asked_at = time.monotonic()
            answer = self._ledger.renew(self._claim, is_lost=self.is_lost)
        self._next_beat = self._asked_at + self._pace
        if answer in KEPT:
            self._on_renewed(self._asked_at)
        if answer == "regained":
            logger.warning("The lease of GPU %s had lapsed, and was taken back", self._claim.gpu)
        elif answer in ("robbed", "lost", "ended") and not self.is_lost:
            self.is_lost = True
            logger.error("The lease of GPU %s is lost (%s)", self._claim.gpu, answer)
            self._on_lost()
