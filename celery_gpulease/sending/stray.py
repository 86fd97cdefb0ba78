"""Messages of GPU tasks that came to a worker past the ledger: sent by hand, or by a sender without GPULease."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from celery.worker.request import Request
from celery.worker.state import revoked as revoked_tasks
from celery.worker.state import task_ready
from kombu.serialization import dumps, registry
from kombu.utils.encoding import str_to_bytes

from celery_gpulease import events
from celery_gpulease.ends import UNREADABLE, stored_end
from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.facts import facts
from celery_gpulease.installed import installation
from celery_gpulease.ledger.views import is_known
from celery_gpulease.model import DEFAULT_POOL, HEADER, check_gpu, check_pool
from celery_gpulease.sending.batch import Sending
from celery_gpulease.sending.destination import Destination
from celery_gpulease.sending.envelope import Finished, as_it_came, held
from celery_gpulease.sending.maps import gpu_task_of
from celery_gpulease.sending.protocol import in_protocol_2

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.app.task import Context

    from celery_gpulease.model import Held

logger = get_logger(__name__)


class StrayRequest(Request):
    """The request of a GPU task, or of a map of one, on a worker without `--gpu`: it is held instead of run.

    Attributes:
        hand_over: Gives it to the worker's thread that holds such requests; None where this package has not wired it.
        qos: Of the connection that it came by.
    """

    hand_over: Callable[[Any], None] | None = None
    qos: Any = None

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._must_be_held = gpu_task_of(self) is not None
        if self._must_be_held:
            self._eta = None  # the ledger waits for it: this worker would keep the message until then

    def revoked(self) -> bool:
        """Celery asks this before it revokes, expires or runs a request: the place to hold it."""
        if not self._must_be_held:
            return bool(super().revoked())
        if self._already_revoked:
            return True
        task_ready(self)
        if self.hand_over is not None:
            self.hand_over(self)
            return True
        try:
            is_held = self.hold()
        except Exception as error:  # noqa: BLE001  # of Redis, or of a result backend
            logger.warning("%s goes back to its queue: %s", self, error)
            self.reject(requeue=True)
        else:
            self.end(is_held=is_held)
        return True

    def hold(self) -> bool:
        """Holds it, or finds that it is known; False where its worker was told that it is revoked, or it has expired.

        It asks Redis, and leaves the broker alone.

        Raises:
            Exception: Of Redis, or of a result backend.
        """
        if self._is_unwanted() and not self._came_twice():
            return False
        hold_stray(self)
        return True

    def __str__(self) -> str:
        """As in Celery's own lines; its `str` goes on with when it expires."""
        return str(self.humaninfo())

    def end(self, *, is_held: bool) -> None:
        """Tells the broker, and of a task that is revoked or has expired the rest of the world too, as Celery does."""
        if is_held or not super().revoked():
            self.acknowledge()

    def _is_unwanted(self) -> bool:
        expires = self.expires
        return self.id in revoked_tasks or bool(expires and datetime.now(expires.tzinfo) > expires)

    def _came_twice(self) -> bool:
        """Of this copy Celery would store that it is revoked, while the other runs."""
        try:
            return is_known(installation(self.app).ledger, ticket_of(self))
        except ConfigurationError:
            return True  # `hold_stray` says why


def hold_stray(request: Any, gpu: str = "") -> None:
    """Holds the message of a request as its sender should have, once. Safe to repeat.

    What can be held by no means fails, as Celery fails what it cannot run.

    Args:
        request: Celery's.
        gpu: The one into whose queue it was sent: a task that is no GPU task runs there and nowhere else.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    if _has_ended_before(request):
        logger.info("%s was delivered again, and is dropped: its result is stored", request)
        return
    try:
        installed, one = installation(request.app), _held(request, gpu)
        ledger = installed.ledger
    except Exception as error:  # noqa: BLE001  # whatever somebody wrote by hand, or a wrong setting
        _fail(request, error)
        return
    if is_known(ledger, one.ticket):
        logger.info("%s came twice, and is dropped: it is held, runs, or has run", request)
        return
    told = {"uuid": request.id, "name": request.task.name, "pool": one.pool, "gpu": one.pin or None}
    events.send(request.app, "task-held", **told)
    context = _context(request) if installed.settings.track_held else None
    answer = Sending(installed, one, context, policy=None).send()
    what = "is revoked" if answer == "revoked" else "is held for a GPU"
    logger.info("%s %s", request, what, extra=facts(task_id=one.task_id, gpu=one.pin, pool=one.pool))


def _fail(request: Any, error: Exception) -> None:
    logger.error("%s came past the ledger, cannot be held, and fails", request, exc_info=error)
    store = request.task.backend.mark_as_failure
    store(request.id, error, request=_context(request), store_result=request.store_errors)


def _held(request: Any, gpu: str) -> Held:
    one = held(request.app, request.task.name, _finished(request), _destination(request, gpu), ticket_of(request))
    return replace(one, run_ticket="", run_token="")  # whatever runs in this process did not send it


def ticket_of(request: Any) -> str:
    """The ticket of a message, the same for all its copies.

    A broker delivers again what was not acknowledged, and a sender that lost its connection sends again: of a copy the
    delivery tag may be another. A retry is another message.
    """
    retries = request.request_dict.get("retries") or 0
    body = hashlib.sha256(str_to_bytes(request.message.body)).hexdigest()
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{request.id}/{request.task.name}/{retries}/{body}").hex


def _has_ended_before(request: Any) -> bool:
    """Was it delivered again so late that the ledger has forgotten its run?"""
    backend = request.task.backend
    if not (request.delivery_info or {}).get("redelivered") or request.ignore_result or backend.as_uri() in UNREADABLE:
        return False
    try:
        return stored_end(backend, request.id, since_ms=0) is not None
    except Exception:  # any backend, any error
        logger.exception("%s is held: the result backend does not say whether it has ended", request)
        return False


def _destination(request: Any, gpu: str) -> Destination:
    told, task = _our_header(request.message.headers), gpu_task_of(request)
    pool = told.get("pool") or (task.pool if task else DEFAULT_POOL)
    pin = told.get("pin") or ("" if task else gpu)
    return Destination(check_pool(pool), check_gpu(pin) if pin else "")


def _our_header(headers: Any) -> dict[str, Any]:
    header = (headers or {}).get(HEADER)
    return header if isinstance(header, dict) else {}


def _finished(request: Any) -> Finished:
    """The message as it came, or in protocol 2 where it came in another."""
    one = as_it_came(request.message)
    body, content_type, encoding, headers = one.body, one.content_type, one.content_encoding, one.headers
    if not _is_of_protocol_2(request.message):
        args, kwargs, embed = request.body
        new = in_protocol_2(request.app.amqp, {**request.request_dict, **embed, "args": args, "kwargs": kwargs})
        content_type, encoding, body = dumps(new.body, registry.type_to_name[content_type])
        headers |= new.headers
    if eta := _our_header(headers).get("eta"):  # held once, and put here by hand
        headers["eta"] = eta
    return Finished(body, content_type, encoding, headers, one.properties)


def _is_of_protocol_2(message: Any) -> bool:
    """As Celery decides it (`task_message_handler` in celery/worker/strategy.py)."""
    return "args" not in message.payload


def _context(request: Any) -> Context:
    context: Context = request._context  # noqa: SLF001
    return context
