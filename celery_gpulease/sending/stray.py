"""Messages of GPU tasks that came to a worker past the ledger: sent by hand, or by a sender without GPULease."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from celery.utils.log import get_logger
from celery.worker.request import Request
from celery.worker.state import task_ready
from kombu.serialization import dumps as dump_body
from kombu.serialization import registry
from kombu.utils.encoding import str_to_bytes

from celery_gpulease import events
from celery_gpulease.ends import UNREADABLE, stored_end
from celery_gpulease.exceptions import ConfigurationError, LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.ledger.views import is_known
from celery_gpulease.loops import RETRY_EVERY
from celery_gpulease.model import DEFAULT_POOL, HEADER, check_gpu, check_pool
from celery_gpulease.sending.destination import Destination
from celery_gpulease.sending.holding import Finished, held
from celery_gpulease.sending.tracking import hold

if TYPE_CHECKING:
    from celery.app.task import Context

    from celery_gpulease.model import Held

logger = get_logger(__name__)

#: What a message of Celery's protocol 2 says in its headers; in protocol 1 its body does.
PROTOCOL_2: Final = (
    *("task", "id", "root_id", "parent_id", "group", "group_index", "shadow", "eta", "expires", "retries"),
    *("timelimit", "argsrepr", "kwargsrepr", "origin", "ignore_result"),
)


class StrayRequest(Request):
    """The request of a GPU task on a worker without `--gpu`: it is held instead of run.

    Attributes:
        consumer: Of the worker, where this package has wired it.
    """

    consumer: Any = None

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._eta = None  # the ledger waits for it: this worker would keep the message until then

    def revoked(self) -> bool:
        """Celery asks this before it revokes, expires or runs a request: the place to hold it.

        Of a message that came twice Celery would store that this copy is revoked, while the other runs.
        """
        if self._already_revoked:
            return True
        try:
            is_twice = is_known(installation(self.app).ledger, ticket_of(self))
        except (LedgerUnavailable, ConfigurationError):
            is_twice = True  # cannot be told now: `_hold` says why
        if not is_twice and super().revoked():
            return True
        task_ready(self)
        self._hold()
        return True

    def _hold(self, *, is_late: bool = False) -> None:
        try:
            hold_stray(self)
        except Exception as error:  # noqa: BLE001  # of Redis, or of a result backend
            self._hold_later(error, is_late=is_late)
            return
        if is_late:
            self.consumer.qos.decrement_eventually()
        self.acknowledge()

    def _hold_later(self, error: Exception, *, is_late: bool) -> None:
        """It stays unacknowledged, as a task with an eta does in Celery, and hinders no other meanwhile."""
        if self.consumer is None:
            logger.warning("%s goes back to its queue: %s", self, error)
            self.reject(requeue=True)
            return
        if not is_late:
            logger.warning("%s cannot be held now, which is tried again: %s", self, error)
            self.consumer.qos.increment_eventually()
        self.consumer.timer.call_after(RETRY_EVERY, self._hold, kwargs={"is_late": True})


def hold_stray(request: Any, pin: str = "") -> None:
    """Holds the message of a request as its sender should have, once. Safe to repeat.

    What can be held by no means fails, as Celery fails what it cannot run.

    Args:
        request: Celery's.
        pin: The GPU for a task that is no GPU task: the one into whose queue it was sent.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    if _has_ended_before(request):
        logger.warning("%s was delivered again, and is dropped: its result is stored", request)
        return
    try:
        installed, one = installation(request.app), _held(request, pin)
    except Exception as error:  # whatever somebody wrote by hand
        logger.exception("%s came past the ledger, cannot be held, and fails", request)
        store = request.task.backend.mark_as_failure
        store(request.id, error, request=_context(request), store_result=request.store_errors)
        return
    if hold(installed, one, _context(request)) == "known":
        logger.warning("%s came twice, and is dropped: it is held, runs, or has run", request)
    else:
        logger.warning("%s came past the ledger, and is held for a GPU", request)
        events.send(
            request.app, "task-held", uuid=request.id, name=request.task.name, pool=one.pool, gpu=one.pin or None
        )


def _held(request: Any, pin: str) -> Held:
    one = held(request.app, request.task.name, _finished(request), _destination(request, pin), ticket_of(request))
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


def _destination(request: Any, pin: str) -> Destination:
    header = (request.message.headers or {}).get(HEADER)
    told = header if isinstance(header, dict) else {}
    pool = told.get("pool") or getattr(request.task, "pool", DEFAULT_POOL)
    pin = told.get("pin") or pin
    return Destination(check_pool(pool), check_gpu(pin) if pin else "")


def _finished(request: Any) -> Finished:
    message = request.message
    properties = {name: value for name, value in (message.properties or {}).items() if name != "delivery_info"}
    body, content_type, encoding = message.body, message.content_type, message.content_encoding
    headers = {name: value for name, value in (message.headers or {}).items() if name != "compression"}  # it is undone
    if request._decoded:  # noqa: SLF001  # of protocol 1: as a sender would write it now
        content_type, encoding, body = dump_body(request._body, serializer=registry.type_to_name[content_type])  # noqa: SLF001
        headers |= {"lang": "py", **{name: request.request_dict.get(name) for name in PROTOCOL_2}}
    told = headers.get(HEADER)
    if isinstance(told, dict) and told.get("eta"):  # held once, and put here by hand
        headers["eta"] = told["eta"]
    return Finished(body, content_type, encoding, headers, properties)


def _context(request: Any) -> Context:
    context: Context = request._context  # noqa: SLF001
    return context
