"""What came into a GPU's queue past the ledger is held by a thread of the worker's main process.

It was taken from the queue without acknowledgement: until the ledger has it, this process alone knows of it. So it is
kept while Redis is away, and put back into the queue where the worker stops first; a `kill -9` meanwhile costs it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from celery.utils.log import get_logger

from celery_gpulease.loops import Loop
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
        while self._waiting:
            request = self._waiting[0]
            hold_stray(request, self._gpu)
            self._waiting.popleft()

    def leave(self) -> None:
        """The worker stops: what is not held yet is held now, or goes back into the queue, or the log has it."""
        self.stop()
        if self.ident is not None:
            self.join(LONGEST_HOLD)
        try:
            self.turn()
        except Exception as error:  # noqa: BLE001  # of Redis, or of a result backend
            logger.warning("What came past the ledger goes back into queue %s: %s", self._queue, error)
        while self._waiting:
            request = self._waiting.popleft()
            try:
                self._put_back(request)
            except Exception:
                logger.critical("%s is LOST: Redis is away while this worker stops", told(request), exc_info=True)

    def _put_back(self, request: Any) -> None:
        message = request.message
        properties = {name: value for name, value in message.properties.items() if name != "delivery_info"}
        with request.app.producer_or_acquire() as producer:
            producer.publish(
                message.body,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                headers={name: value for name, value in message.headers.items() if name != "compression"},
                exchange="",
                routing_key=self._queue,
                retry=False,
                **{name: value for name, value in properties.items() if name not in ("delivery_tag", "body_encoding")},
            )


def told(request: Any) -> str:
    """All of a message that is needed to send it again."""
    return f"{request} (headers {request.message.headers!r}, body {request.message.body!r})"
