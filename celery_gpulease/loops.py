"""The threads beside a worker's event loop: each does its turn, again and again, until it is stopped."""

from __future__ import annotations

import threading
from contextlib import nullcontext

from celery.utils.log import get_logger

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.forks import apart_from_forks
from celery_gpulease.settings import RETRY_EVERY

logger = get_logger(__name__)


class Loop(threading.Thread):
    """A daemon thread that calls `turn` until `stop`, and whatever a turn raises goes on.

    Args:
        name: Shown in the log.

    Attributes:
        is_over: It has been stopped: no further turn begins, and a long one may end here.
        uses_celery: Its turns touch the app, and so locks that a child must not find closed.
    """

    is_over = False
    uses_celery = False

    def __init__(self, name: str) -> None:
        super().__init__(name=f"gpulease-{name}", daemon=True)
        self.wanted = threading.Event()
        self._is_known_away = False

    def turn(self) -> float | None:
        """One turn; the seconds until the next, None for not before it is woken."""
        raise NotImplementedError

    def wake(self) -> None:
        """Lets the next turn begin now."""
        self.wanted.set()

    def stop(self) -> None:
        """Ends the thread after the turn that it is at."""
        self.is_over = True
        self.wanted.set()

    def run(self) -> None:
        """Turns until it is stopped. That Redis is away is said once."""
        while True:
            self.wanted.clear()
            if self.is_over:  # looked at after that: else it would forget that it was woken to stop
                return
            try:
                with apart_from_forks() if self.uses_celery else nullcontext():
                    seconds = self.turn()
                self._is_known_away = False
            except LedgerUnavailable as error:
                seconds = RETRY_EVERY
                if not self._is_known_away:
                    logger.warning("%s has lost Redis, and tries again: %s", self.name, error)
                self._is_known_away = True
            except Exception:
                seconds = RETRY_EVERY
                logger.exception("%s has failed, and goes on", self.name)
            self.wanted.wait(seconds)
