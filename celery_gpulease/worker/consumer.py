"""Celery's consumer on a GPU's worker: our requests, and the ends of messages that never become one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.exceptions import InvalidTaskError
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from celery.worker.consumer import Consumer
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.model import HEADER, Claim
from celery_gpulease.sending.envelope import read_envelope
from celery_gpulease.worker.broker import ask_when_given
from celery_gpulease.worker.gpu_worker import BROKER_LOST, CANCELLED
from celery_gpulease.worker.request import gpu_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)


def gpu_consumer(base: type, gpu_worker: GPUWorker, **callbacks: Callable[[], None]) -> type:
    """The consumer class of a GPU's worker, over Celery's or the user's own (`worker_consumer`).

    Args:
        base: That class.
        gpu_worker: What this worker answers for.
        callbacks: See `GPUConsumer`.
    """
    told = {name: staticmethod(callback) for name, callback in callbacks.items()}
    return type("GPUConsumer", (GPUConsumer, base), {"gpu_worker": gpu_worker, **told})


class GPUConsumer(Consumer):
    """The consumer of a GPU's worker.

    Attributes:
        gpu_worker: What this worker answers for.
        on_consuming: Called each time when it has begun to consume: from then on a claim can be started.
        on_stopped: Called when the pool has ended, in every kind of shutdown.
        on_asking: Called every other second or more often, where the broker has to be asked for messages.
    """

    gpu_worker: GPUWorker
    on_consuming: Callable[[], None]
    on_stopped: Callable[[], None]
    on_asking: Callable[[], None]
    _is_cut_off = False

    def __init__(self, on_task_request: Callable[[Any], None], *args: Any, **options: Any) -> None:
        self._run = on_task_request
        super().__init__(self._hold_or_run, *args, **options)

    def _hold_or_run(self, request: Any) -> None:
        """What came past the ledger is held now: nobody else has it, and the pool may be busy for hours."""
        if request.claim is not None or not request.revoked():
            self._run(request)

    def update_strategies(self) -> None:
        """Every task gets our request, before Celery builds the strategies that use it."""
        for task in self.app.tasks.values():
            task.Request = gpu_request(symbol_by_name(task.Request), self.gpu_worker, self.pool)
        super().update_strategies()

    def bucket_for_task(self, _task: Any) -> None:
        """No bucket for Celery, which would park a request that holds a lease: our request looks at ours."""

    # a message that never becomes a request ends its ticket

    def create_task_handler(self, *args: Any, **options: Any) -> Any:
        """Celery would meet a body of another shape in the middle of its work, and end this worker, then the next."""
        handle = super().create_task_handler(*args, **options)

        def on_task_received(message: Any) -> Any:
            keep_from_broker(message)
            try:
                check_message(message)
            except InvalidTaskError as error:
                return self.on_invalid_task(None, message, error)
            return handle(message)

        return on_task_received

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """It is no task's message."""
        super().on_unknown_message(body, message)
        self._end_ticket(message)

    def on_unknown_task(self, body: Any, message: Any, exc: Any) -> None:
        """This project has no such task."""
        super().on_unknown_task(body, message, exc)
        self._end_ticket(message)

    def on_invalid_task(self, body: Any, message: Any, exc: Any) -> None:
        """Its headers make no sense."""
        super().on_invalid_task(body, message, exc)
        self._end_ticket(message)

    def on_decode_error(self, message: Any, exc: Any) -> None:
        """Its body cannot be read. Celery sends no signal of it: only here it is seen."""
        keep_from_broker(message)
        super().on_decode_error(message, exc)
        self._end_ticket(message)

    def _end_ticket(self, message: Any) -> None:
        headers = message.headers if isinstance(message.headers, dict) else {}
        claim = Claim.from_header(headers.get(HEADER))
        if claim is not None and claim.gpu == self.gpu_worker.device.id:
            self.gpu_worker.begin(claim, message)
            self.gpu_worker.end(claim)

    # messages that the ledger keeps, where it is not the broker

    def receive_routed(self, text: str) -> None:
        """Receives a message of the ledger as if the broker had delivered it.

        Between two connections nothing is received: its claim has gone back by then.
        """
        if self.task_consumer is None:
            return
        message = read_envelope(text, self.task_consumer.accept)
        if message.errors:  # it cannot be decompressed
            self.on_decode_error(message, message.errors[0][1])
        else:
            self.task_consumer.on_message(message)

    def perform_pending_operations(self) -> None:
        """Celery calls this between two looks at a broker that it has to ask (`synloop` in celery/worker/loops.py)."""
        super().perform_pending_operations()
        if not self.hub:
            self.on_asking()

    # its own life

    def cancel_task_queue(self, queue: str) -> None:
        """`control.cancel_consumer`: who does not consume its GPU's queue must not be given work."""
        super().cancel_task_queue(queue)
        if queue == self.gpu_worker.device.queue:
            self.gpu_worker.close(CANCELLED)

    def add_task_queue(self, queue: str, *args: Any, **options: Any) -> None:
        """`control.add_consumer`: work again. Another queue than its GPU's is refused."""
        if queue != self.gpu_worker.device.queue:
            logger.error("A GPU's worker consumes the queue of its GPU and no other: %s is left alone", queue)
            return
        super().add_task_queue(queue, *args, **options)
        self.gpu_worker.open(CANCELLED)

    def on_ready(self) -> None:
        """Celery calls this when it consumes, at its start and after each loss of the connection."""
        super().on_ready()
        ask_when_given(self.connection, self.task_consumer.channel, getattr(self.pool, "_pool", None))
        if self._is_cut_off:
            self._is_cut_off = False
            tell_if_possible(self.gpu_worker.open, BROKER_LOST)
        self.on_consuming()

    def on_close(self) -> None:
        """Celery drops, in silence, requests that the pool has not got yet: the heartbeat looks for them.

        Until there is a connection again Celery does nothing else: so this GPU takes no work, which others may do.
        """
        super().on_close()
        self.gpu_worker.wake_heartbeat()
        self._is_cut_off = True
        tell_if_possible(self.gpu_worker.close, BROKER_LOST)

    def cancel_active_requests(self) -> None:
        """A cold shutdown ends what runs; the loss of the broker, which asks each request by itself, does not."""
        self.gpu_worker.turn_cold()
        super().cancel_active_requests()

    def cancel_all_unacked_requests(self) -> None:
        """The same in Celery 5.5."""
        self.gpu_worker.turn_cold()
        super().cancel_all_unacked_requests()

    def shutdown(self) -> None:
        """Celery calls this last, when the pool has ended, warm or cold (`WorkController.on_stopped`)."""
        super().shutdown()
        self.on_stopped()


def keep_from_broker(message: Any) -> None:
    """Lets nothing that Celery does with a message reach the broker, which keeps no copy of it.

    RabbitMQ would close the channel: kombu looks for `no_ack` before it acknowledges, not before it rejects. And Redis
    would be asked to forget what it does not know.
    """
    message.ack = message.reject = message.requeue = lambda *_, **__: None


def tell_if_possible(tell: Callable[[str], None], why: str) -> None:
    """Redis may be away at the same time: the heartbeat tells it later."""
    try:
        tell(why)
    except LedgerUnavailable as error:
        logger.warning("Redis does not hear of the broker's loss or return now: %s", error)


def check_message(message: Any) -> None:
    """Looks for what would end Celery's worker. What cannot be decoded, or is no task's message, is left to Celery.

    Raises:
        InvalidTaskError: Its body is not [args, kwargs, embed], or its time limits are not two numbers.
    """
    if not (isinstance(message.headers, dict) and "task" in message.headers):
        return
    try:
        payload = message.payload
    except (ContentDisallowed, DecodeError):
        return
    match payload:
        case [list() | tuple(), dict(), dict() | None]:
            pass
        case _:
            raise InvalidTaskError("its body is not [args, kwargs, embed]")
    match message.headers.get("timelimit"):
        case None | [int() | float() | None, int() | float() | None]:
            return
    raise InvalidTaskError("its timelimit is not [hard, soft]")
