"""Messages of GPU tasks that came to a worker past the ledger: sent by hand, or by a sender without GPULease."""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any, Final

from billiard.einfo import ExceptionInfo
from celery import bootsteps
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from celery.worker.request import Request
from celery.worker.state import task_ready
from kombu.serialization import dumps, registry

from celery_gpulease.exceptions import ConfigurationError, LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.model import DEFAULT_POOL
from celery_gpulease.sending.destination import Destination
from celery_gpulease.sending.holding import Finished, held
from celery_gpulease.sending.maps import gpu_task_of
from celery_gpulease.sending.protocol import in_protocol_2
from celery_gpulease.sending.task import LeasedTask

logger = get_logger(__name__)


class StrayStep(bootsteps.Step):
    """Of a worker's consumer: GPU tasks are held there also where they have a request class of their own."""

    label = "Stray GPU tasks"

    def __init__(self, consumer: Any, **_: Any) -> None:
        super().__init__(consumer)
        for task in consumer.app.tasks.values():
            if isinstance(task, LeasedTask):
                task.Request = stray_request(symbol_by_name(task.Request))


@cache
def stray_request(base: type) -> type:
    """The request class of a task that may need a lease, on a worker without `--gpu`: over Celery's or the user's."""
    if issubclass(base, StrayRequest):
        return base
    return type("StrayRequest", (StrayRequest, base), {"own": base})


#: What a transport puts among a message's properties, and the message says elsewhere too.
_OF_TRANSPORTS: Final = ("delivery_info", "application_headers", "content_type", "content_encoding")


class StrayRequest(Request):
    """The request of a GPU task, or of a map of one, on a worker without `--gpu`: it is held instead of run.

    Attributes:
        own: The task's own class of requests.
    """

    own: type = Request

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._is_held = gpu_task_of(self) is not None
        if self._is_held:
            self._eta = None  # the ledger waits

    def revoked(self) -> bool:
        """Celery asks this before it runs a request: the place to hold it."""
        if super().revoked():
            return True
        if not self._is_held:
            return False
        task_ready(self)
        try:
            hold_again(self)
        except LedgerUnavailable as error:
            logger.warning("%s goes back to its queue: %s", self, error)
            self.reject(requeue=True)
        except ConfigurationError:  # it cannot be held, and must not run
            self.on_failure(ExceptionInfo())
        else:
            self.acknowledge()
        return True


def hold_again(request: Any, gpu: str = "") -> None:
    """Holds the message of a request as its sender should have.

    Args:
        request: Celery's.
        gpu: Into whose queue it was sent: a task that is no GPU task is pinned there.

    Raises:
        LedgerUnavailable: Redis does not answer.
        ConfigurationError: A setting is wrong.
    """
    message, task, finished = request.message, gpu_task_of(request), finished_again(request)
    # the same for a message that is delivered again, because HOLD's reply was lost
    ticket = uuid.uuid5(uuid.NAMESPACE_OID, f"{request.id}/{message.delivery_tag}").hex
    where = Destination(task.pool, "") if task else Destination(DEFAULT_POOL, gpu)
    installation(request.app).ledger.hold(held(request.app, request.task.name, finished, where, ticket))
    logger.warning("%s came past the ledger, and is held for a GPU", request)


def finished_again(request: Any) -> Finished:
    """The message as it came, or in protocol 2 where it came in another."""
    message = request.message
    properties = {name: value for name, value in (message.properties or {}).items() if name not in _OF_TRANSPORTS}
    headers = dict(message.headers or {})
    headers.pop("compression", None)  # kombu has undone it
    if is_of_protocol_2(message):
        return Finished(message.body, message.content_type, message.content_encoding, headers, properties)
    args, kwargs, embed = request.body
    new = in_protocol_2(request.app.amqp, {**request.request_dict, **embed, "args": args, "kwargs": kwargs})
    content_type, encoding, body = dumps(new.body, registry.type_to_name[message.content_type])
    return Finished(body, content_type, encoding, {**headers, **new.headers}, properties)


def is_of_protocol_2(message: Any) -> bool:
    """As Celery decides it (`task_message_handler` in celery/worker/strategy.py)."""
    return "args" not in message.payload
