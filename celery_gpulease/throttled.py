"""A line of the log about many alike: the first of them is said at once, and the others together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

#: Seconds between two lines.
EVERY: Final = 10.0


class ThrottledWarning:
    """Warns of what may come by the thousand: a line in ten seconds, with their number and the last of them.

    Whoever has a thread calls `say` when it is time; else the next of them is said with those before it. It has no
    lock, which a fork might copy closed: at worst a number is wrong by one.

    Args:
        logger: Whose line it is.
        words: Of the line: for the number, then for what `add` is given.
    """

    def __init__(self, logger: logging.Logger, words: str) -> None:
        self._logger, self._words = logger, words
        self._number = 0
        self._last: tuple[object, ...] = ()
        self._next_at = 0.0

    def add(self, *last: object) -> None:
        """One more."""
        self._number, self._last = self._number + 1, last
        self.say()

    def say(self, *, at_last: bool = False) -> float | None:
        """Says what is not said yet, where it is time; the seconds until then, or None where all is said.

        Args:
            at_last: Nobody will ask again.
        """
        left = self._next_at - time.monotonic()
        if not self._number:
            return None
        if left > 0 and not at_last:
            return left
        number, self._number = self._number, 0
        self._next_at = time.monotonic() + EVERY
        self._logger.warning(self._words, number, *self._last)
        return None
