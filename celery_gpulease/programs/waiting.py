"""Whoever wants to run a program stands in line for a GPU of this host, in the line of the tasks."""

from __future__ import annotations

import logging
import math
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_gpulease.exceptions import ConfigurationError, LedgerUnavailable, TurnCancelled, TurnTimeout
from celery_gpulease.ledger.listening import Subscription
from celery_gpulease.ledger.turns import Program
from celery_gpulease.ledger.workers import HELD_BACK
from celery_gpulease.model import Device, unique
from celery_gpulease.settings import RETRY_EVERY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.model import Claim

#: Not Celery's: in a process that has set up no loggers it would swallow what it is told.
logger = logging.getLogger(__name__)

#: The answers to START by which a run begins.
STARTED: Final = ("run", "rerun")


@dataclass(frozen=True)
class Held:
    """A GPU that a program holds: the claim, the device, and the seconds that its lease outlives a renewal."""

    claim: Claim
    device: Device
    ttl: float


def check_timeout(timeout: float | None) -> None:
    """Refuses what is no time to wait.

    Raises:
        ConfigurationError: It is less than nothing, without end (None says that), or no number.
    """
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 <= timeout < math.inf):
        message = f"timeout must be seconds from 0 on, or None to wait without end: not {timeout!r}"
        raise ConfigurationError(message)


class Waiter:
    """Waits for one turn.

    The ledger forgets who does not say that it still waits, or listens no more. So nothing is left of a waiter that was
    killed; one that was only away (Redis too) enters anew, at its old place.

    Args:
        ledger: The ledger.
        task: What waits, as people shall see it.
        pool: Its line.
        priority: The broker's.
        on_waiting: Called once, with the ticket, where the turn does not come at once.
    """

    def __init__(
        self, ledger: Ledger, task: str, pool: str, priority: int, on_waiting: Callable[[str], None] = lambda _: None
    ) -> None:
        self._ledger, self._on_waiting = ledger, on_waiting
        self._program = Program(unique(), task, ledger.settings.host, pool, priority)
        self._subscription = Subscription(ledger, "", program=self._program.ticket)
        self._nonce = unique()
        self._score = ""
        self._claim: Claim | None = None
        self._is_known_away = False
        self._back_until = 0.0  # by the monotonic clock

    def wait(self, timeout: float | None = None) -> Held:
        """Waits until this host has a GPU for it, and takes that one.

        Args:
            timeout: Seconds, None for without end.

        Raises:
            ConfigurationError: No GPU of this host serves the pool, or that is no timeout.
            LedgerUnavailable: Redis does not answer, before it stands in line. Later on it is waited for.
            TurnCancelled: It was taken back by order.
            TurnTimeout: Its turn did not come in time.
        """
        check_timeout(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        try:
            with closing(self._subscription):
                while self._subscription.wait(RETRY_EVERY) != "subscribed":
                    pass
                while not (held := self._look()):
                    self._sleep(until, timeout)
        except BaseException:
            self.leave()
            raise
        return held

    def _look(self) -> Held | None:
        try:
            held = self._ask()
            self._is_known_away = False
        except LedgerUnavailable as error:
            if not self._score:
                raise
            self._say_away(error)
            return None
        return held

    def _ask(self) -> Held | None:
        for gpu in self._ledger.agenda().lapsed:  # where no worker lives, nobody else does
            self._ledger.reap(gpu)
        is_back = time.monotonic() < self._back_until
        turn = self._ledger.attend(self._program, self._score, is_back=is_back)
        if turn.word == "unserved":
            raise ConfigurationError(self._why_unserved(turn.served or {}))
        if turn.word == "ended":
            message = f"{self._program.task} was cancelled while it waited for a GPU of pool {self._program.pool}"
            raise TurnCancelled(message)
        if turn.claim is None:
            if not self._score:
                self._on_waiting(self._program.ticket)
            self._score = turn.score
            return None
        self._claim = turn.claim
        holder = self._program.ticket
        answer = self._ledger.start(turn.claim, self._nonce, holder, acks_late=False, limit=1, stores_result=False)
        if answer not in STARTED:  # it was taken back, or a stranger has that GPU: it waits on
            self._claim = None
            return None
        return Held(turn.claim, Device(turn.claim.gpu, turn.index, self._program.host), turn.ttl)

    def _sleep(self, until: float | None, timeout: float | None) -> None:
        pace = self._ledger.settings.heartbeat_interval
        left = pace if until is None else until - time.monotonic()
        if left <= 0:
            message = f"no GPU of pool {self._program.pool} on {self._program.host} within {timeout:g} seconds"
            raise TurnTimeout(message)
        try:
            if self._subscription.wait(min(pace, left)) == "subscribed":  # again: it was cut off
                self._back_until = time.monotonic() + pace + HELD_BACK
        except LedgerUnavailable as error:
            self._say_away(error)
            time.sleep(min(RETRY_EVERY, left))

    def leave(self) -> None:
        """Waits no more, and gives back what it may have. Safe to repeat."""
        try:
            if self._claim is not None:  # it may have started
                self._ledger.release(self._claim)
            self._ledger.cancel(self._program.ticket)
        except LedgerUnavailable as error:
            if not (self._score or self._claim):
                return  # it never stood in line
            seconds = self._ledger.settings.lease_ttl
            logger.warning("Redis does not hear that %s waits no more; %g s will tell: %s",
                           self._program.task, seconds, error)  # fmt: skip

    def _say_away(self, error: LedgerUnavailable) -> None:
        if not self._is_known_away:
            logger.warning("%s has lost Redis, and tries again: %s", self._program.task, error)
        self._is_known_away = True

    def _why_unserved(self, served: Mapping[str, str]) -> str:
        host, pool = self._program.host, self._program.pool
        known = "; ".join(f"{gpu} serves {pools}" for gpu, pools in sorted(served.items()))
        return (
            f"no GPU of host {host} serves pool {pool!r}: {known or 'none is registered there'}. "
            f"A GPU is registered by its worker, once: celery -A PROJ worker --gpu 0 --gpu-pools {pool}"
        )
