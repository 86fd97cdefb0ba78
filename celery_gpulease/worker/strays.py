"""What came past the ledger is held by a thread of the worker's main process: its event loop waits for no Redis.

On a GPU's worker it was taken from the queue without acknowledgement: until the ledger has it, this process alone knows
of it. So it is kept while Redis is away, and put back into the queue where the worker stops first; a `kill -9`
meanwhile costs it, and so does a stop while the broker is away too.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from celery.utils.log import get_logger

from celery_gpulease.forks import let_forks_pass
from celery_gpulease.loops import Loop
from celery_gpulease.sending.envelope import as_it_came
from celery_gpulease.sending.stray import hold_stray
from celery_gpulease.settings import RETRY_EVERY
from celery_gpulease.throttled import ThrottledWarning

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

CAME_PAST: Final = (
    "Messages that came past the ledger, and are held now: %d, the last %s. Their senders do not call GPULease(app), "
    "or send into a GPU's queue by hand"
)
#: Seconds that a worker that stops waits for the hold that it is at.
LONGEST_HOLD: Final = 5.0


class Line(Loop):
    """Holds them one after the other, in the order in which they came."""

    uses_celery = True

    def __init__(self) -> None:
        super().__init__("strays")
        self._waiting: deque[Any] = deque()
        self._told: Any = None  # the last of which the log says that it waits
        self._held = ThrottledWarning(logger, CAME_PAST)

    def add(self, request: Any) -> None:
        """Takes a request over. Called by the event loop: never blocks."""
        self._waiting.append(request)
        self.wake()

    def turn(self) -> float | None:
        """Holds what waits, as long as that succeeds."""
        try:
            while self._waiting and not self.is_over:
                let_forks_pass()
                self._hold_first()
        except Exception as error:  # noqa: BLE001  # of Redis, or of a result backend
            self._say_once(error)
            return RETRY_EVERY
        return self._held.say()

    def _say_once(self, error: Exception) -> None:
        first = self._waiting[0]
        if first is not self._told:
            self._told = first
            logger.warning("%s cannot be held now, which is tried again: %s", first, error)

    def _hold_first(self) -> None:
        if self.hold(self._waiting[0]):
            self._held.add(self._waiting[0])
        self._waiting.popleft()

    def stop(self) -> None:
        """Ends the thread after the hold that it is at."""
        super().stop()
        self._held.say(at_last=True)

    def hold(self, request: Any) -> bool:
        """Holds one; False where there is nothing to do.

        Raises:
            Exception: Of Redis, or of a result backend; it remains the first.
        """
        raise NotImplementedError


class PlainStrays(Line):
    """Those of a worker without `--gpu`, whose broker keeps them until they are acknowledged.

    Args:
        consumer: Celery's. What came by another connection of it than the present one is dropped: the broker delivers
            it again.
    """

    def __init__(self, consumer: Any) -> None:
        super().__init__()
        self._consumer = consumer
        self._ends: deque[Callable[[], None]] = deque()
        self._bell, self._ring = os.pipe()  # one byte for each that is held

    def add(self, request: Any) -> None:
        """Takes a request over, which hinders no other meanwhile, as a task with an eta does not in Celery."""
        self._consumer.qos.increment_eventually()
        request.qos = self._consumer.qos
        super().add(request)

    def hold(self, request: Any) -> bool:
        """Holds one, and lets the event loop acknowledge it, which alone may speak to the broker."""
        if request.qos is not self._consumer.qos:
            return False
        is_held: bool = request.hold()
        self._ends.append(lambda: self._end(request, is_held=is_held))
        os.write(self._ring, b"\0")
        return is_held

    def register(self, hub: Any) -> None:
        """Lets Celery's event loop acknowledge as soon as one is held."""
        hub.add_reader(self._bell, self._end_one)

    def end_all(self) -> None:
        """Acknowledges all that is held: for a loop that does not watch for it."""
        while self._ends:
            self._end_one()

    def _end_one(self) -> None:
        os.read(self._bell, 1)
        self._ends.popleft()()

    def _end(self, request: Any, *, is_held: bool) -> None:
        if request.qos is self._consumer.qos:
            request.qos.decrement_eventually()
            request.end(is_held=is_held)


class Strays(Line):
    """Those of a GPU's worker, which alone has them."""

    def __init__(self, gpu_worker: GPUWorker) -> None:
        super().__init__()
        self._gpu, self._queue = gpu_worker.device.id, gpu_worker.device.queue

    def hold(self, request: Any) -> bool:
        """Holds one."""
        hold_stray(request, self._gpu)
        return True

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
        self._held.say(at_last=True)
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
