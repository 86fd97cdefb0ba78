"""Celery's rate limits on a GPU's worker: a task that must wait goes back to the schedule, and holds no lease."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from celery.utils.time import rate
from kombu.utils.limits import TokenBucket


@dataclass
class _Limit:
    """One task's bucket, and the slot that was promised last, on the monotonic clock."""

    text: Any
    bucket: TokenBucket
    last_slot: float = 0.0


class RateLimits:
    """The buckets of one worker, by task: as in Celery, a rate limit is each worker's own."""

    def __init__(self) -> None:
        self._limits: dict[str, _Limit] = {}

    def seconds_until(self, task: Any) -> float:
        """Takes a token for a task that may start now, and answers 0; else the seconds until its slot.

        Each task that must wait gets a slot of its own, so that they do not all come back for one token.
        """
        text = getattr(task, "rate_limit", None)
        per_second = rate(text) if text else 0
        if not per_second:
            return 0.0
        limit = self._limits.get(task.name)
        if limit is None or limit.text != text:  # new, or changed by remote control
            limit = self._limits[task.name] = _Limit(text, TokenBucket(per_second, capacity=1))
        if limit.bucket.can_consume():
            return 0.0
        now = time.monotonic()
        limit.last_slot = max(now + limit.bucket.expected_time(), limit.last_slot + 1 / per_second)
        return limit.last_slot - now
