"""Celery's rate limits on a GPU's worker: a task that must wait goes back to the schedule, and holds no lease."""

from __future__ import annotations

import time
from typing import Any, Final

from celery.utils.time import rate

#: Seconds after which a promise is forgotten: its ticket started elsewhere, or ended.
FORGOTTEN_AFTER: Final = 600.0


class RateLimits:
    """The rates of one worker, by task: as in Celery, a rate limit is each worker's own.

    Each task that must wait is promised a slot of its own, in the order of asking, and starts in it when it comes back.
    Times are of the monotonic clock.
    """

    def __init__(self) -> None:
        self._next_slot: dict[str, float] = {}
        self._promised: dict[str, float] = {}

    def seconds_until(self, task: Any, ticket: str) -> float:
        """Takes a slot: 0 for a task that may start now, else the seconds until its own."""
        limit = getattr(task, "rate_limit", None)
        per_second = rate(limit) if limit else 0
        if not per_second:
            return 0.0
        now = time.monotonic()
        slot = self._promised.pop(ticket, None)
        if slot is None:
            slot = max(now, self._next_slot.get(task.name, 0.0))
            self._next_slot[task.name] = slot + 1 / per_second
        if slot <= now:
            return 0.0
        self._forget(now)
        self._promised[ticket] = slot
        return slot - now

    def _forget(self, now: float) -> None:
        for ticket in [ticket for ticket, slot in self._promised.items() if slot < now - FORGOTTEN_AFTER]:
            del self._promised[ticket]
