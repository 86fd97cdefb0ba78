"""What came into a GPU's queue past the ledger is held by a thread of the worker's main process.

It was taken from the queue without acknowledgement: until the ledger has it, this process alone knows of it. So it is
kept while Redis is away, and put back into the queue where the worker stops first; a `kill -9` meanwhile costs it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from celery.utils.log import get_logger

from celery_gpulease.loops import Loop
from celery_gpulease.sending.holding import as_it_came
from celery_gpulease.sending.stray import hold_stray

if TYPE_CHECKING:
    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

#: Seconds that a worker that stops waits for the hold that it is at.
LONGEST_HOLD: Final = 5.0


class Strays(Loop):
    """Holds them one after the other, in the order in which they came."""

    def __init__(self, gpu_worker: GPUWorker) -> None:
        super().__init__("strays")
        self._gpu, self._queue = gpu_worker.device.id, gpu_worker.device.queue
        self._waiting: deque[Any] = deque()

    def add(self, request: Any) -> None:
        """Takes a request over. Called by the event loop: never blocks."""
        self._waiting.append(request)
        self.wake()

    def turn(self) -> None:
        """Holds what waits.

        Raises:
            LedgerUnavailable: Redis does not answer; what waits remains.
        """
        while self._waiting and not self._is_over:
            self._hold_first()

    def _hold_first(self) -> None:
        request = self._waiting[0]
        hold_stray(request, self._gpu)
        self._waiting.popleft()

    def leave(self) -> None:
        """The worker stops: what is not held yet is held now, or goes back into the queue, or the log has it.

        This thread alone takes from the line until it has ended. Where it is still at a hold, Redis is slow: all goes
        back, also what that hold may yet reach, since a message that comes twice is held once.
        """
        self.stop()
        if self.ident is not None:
            self.join(LONGEST_HOLD)
        if self.is_alive():
            self._say_back("Redis does not answer")
        else:
            self._hold_the_rest()
        for request in tuple(self._waiting):
            self._put_back_or_say(request)

    def _hold_the_rest(self) -> None:
        try:
            while self._waiting:
                self._hold_first()
        except Exception as error:  # noqa: BLE001  # of Redis, or of a result backend
            self._say_back(error)

    def _say_back(self, why: object) -> None:
        logger.warning("What came past the ledger goes back into queue %s: %s", self._queue, why)

    def _put_back_or_say(self, request: Any) -> None:
        try:
            self._put_back(request)
        except Exception:
            logger.critical("%s is LOST: it can neither be held nor go back", told(request), exc_info=True)

    def _put_back(self, request: Any) -> None:
        one = as_it_came(request.message)
        with request.app.producer_or_acquire() as producer:
            producer.publish(
                one.body,
                content_type=one.content_type,
                content_encoding=one.content_encoding,
                headers=one.headers,
                exchange="",
                routing_key=self._queue,
                retry=False,
                **one.properties,
            )


def told(request: Any) -> str:
    """All of a message that is needed to send it again."""
    return f"{request} (headers {request.message.headers!r}, body {request.message.body!r})"
