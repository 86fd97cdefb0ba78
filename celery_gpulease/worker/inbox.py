"""The messages of one GPU where the broker is not the ledger's Redis: the worker takes them from there itself.

So whoever claims, a sender, another worker or the reconciler, needs no broker, and what is taken back before it starts
is gone from everywhere. The broker's queue `gpu.<id>` remains for what came past the ledger.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.ledger.routed import RoutedMessages
from celery_gpulease.loops import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.ledger import Ledger

#: How long one question waits for a message.
WAIT_SECONDS: Final = 2


class Inbox(Loop):
    """Takes messages in a thread of its own, and hands them over in Celery's.

    Args:
        ledger: Of the app.
        gpu: The GPU's id.
        handle: Called for each message, by `deliver`.
    """

    def __init__(self, ledger: Ledger, gpu: str, handle: Callable[[str], object]) -> None:
        super().__init__("inbox")
        self._routed = RoutedMessages(ledger, gpu, WAIT_SECONDS)
        self._handle = handle
        self._taken: deque[str] = deque()
        self._bell, self._ring = os.pipe()  # one byte for each message that is taken

    def turn(self) -> float:
        """Waits for one message."""
        if message := self._routed.take():
            self._taken.append(message)
            os.write(self._ring, b"\0")
        return 0.0

    def register(self, hub: Any) -> None:
        """Lets Celery's event loop deliver as soon as there is something."""
        hub.add_reader(self._bell, self._deliver_one)

    def deliver(self) -> None:
        """Delivers all that was taken: for a loop that does not watch for it."""
        while self._taken:
            self._deliver_one()

    def _deliver_one(self) -> None:
        os.read(self._bell, 1)
        self._handle(self._taken.popleft())
