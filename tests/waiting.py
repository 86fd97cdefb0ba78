"""Waiting for a condition, with a deadline: what tests do instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

STEP_SECONDS = 0.01


def wait_until(probe: Callable[[], T], seconds: float, what: str) -> T:
    """Calls the probe until it answers something true, and returns that.

    Raises:
        AssertionError: It did not within the time; the message says what was awaited and what the last answer was.
    """
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Waited {seconds} s for {what}; the last answer was {answer!r}")
        time.sleep(STEP_SECONDS)
    return answer
