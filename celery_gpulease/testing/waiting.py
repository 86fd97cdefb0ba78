"""Waiting for a condition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds between two looks.
LOOK_EVERY: Final = 0.005


def wait_for(probe: Callable[[], Any], seconds: float, what: str | Callable[[], str]) -> Any:
    """Looks again and again until the answer is true, and returns it.

    Raises:
        AssertionError: It was not in time.
    """
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        if time.monotonic() > deadline:
            message = f"waited {seconds:g} s for {what if isinstance(what, str) else what()}"
            raise AssertionError(message)
        time.sleep(LOOK_EVERY)
    return answer
