"""Ends outside Redis: a result, its callbacks and signals, written for a task that no worker will run (again).

It takes two steps, so that nothing is lost when the writer dies between them: END hands a ticket out for a while,
FINISH forgets it. A thread does it, since a slow result backend must not delay a claim.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from celery import signals, states
from celery.app.task import Context
from celery.utils.log import get_logger
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from celery_gpulease import events
from celery_gpulease.ends import backend_of, is_body_claimed, is_result_ignored, registered, repeat_end, stored_end
from celery_gpulease.exceptions import LeaseLost
from celery_gpulease.facts import facts
from celery_gpulease.forks import let_forks_pass
from celery_gpulease.ledger.reasons import DETAILS
from celery_gpulease.loops import Loop
from celery_gpulease.model import CLAIM_HOLE, HEADER, QUEUE_HOLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.ledger.answers import Ending

    #: An event's type and fields.
    Event: TypeAlias = tuple[str, dict[str, Any]]

logger = get_logger(__name__)

#: Why a ticket ended → what is said of it.
REASONS: Final = {"expired": "expired", "cancelled": "revoked"}


class EndWriter(Loop):
    """Writes the ends that are due, one after the other, each time it is woken."""

    uses_celery = True

    def __init__(self, app: Any, ledger: Ledger) -> None:
        super().__init__("end-writer")
        self._app, self._ledger = app, ledger

    def turn(self) -> None:
        """Writes all that are due, or the one that it is at when it is stopped."""
        write_ends(self._app, self._ledger, is_over=lambda: self.is_over)


def write_ends(app: Any, ledger: Ledger, *, is_over: Callable[[], bool] = lambda: False) -> None:
    """Writes every end that is due. What fails is tried again after a while, ten times.

    Args:
        app: The app.
        ledger: Its ledger.
        is_over: Asked after each; none is begun where it is true.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """

    def due() -> Iterator[Ending]:
        while ending := ledger.end():
            yield ending
            if is_over():
                return

    _write_each(app, ledger, due())


def write_ends_of(app: Any, ledger: Ledger, tickets: Iterable[str]) -> Exception | None:
    """Writes the ends of these tickets, where they are due and nobody else writes them; what went wrong first.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    return _write_each(app, ledger, filter(None, map(ledger.end, tickets)))


def _write_each(app: Any, ledger: Ledger, endings: Iterable[Ending]) -> Exception | None:
    """Writes them; the first that fails is told, of the others their number: a backend that is away fails all."""
    first: Exception | None = None
    others = 0
    for ending in endings:
        let_forks_pass()
        try:
            is_written = write_end(app, ending)
        except Exception as error:  # any backend, any error
            if first is None:
                first = error
                words = "The end of %s[%s] could not be written; it is tried again"
                logger.exception(words, ending.task, ending.task_id)
            else:
                others += 1
            continue
        if is_written:
            ledger.finish(ending.ticket)
        else:
            ledger.put_off(ending.ticket)
    if others:
        logger.error("The ends of %d more tasks could not be written; they are tried again", others)
    return first


def write_end(app: Any, ending: Ending) -> bool:
    """Stores one task's end, REVOKED or FAILURE with LeaseLost, and does what Celery does beside it.

    A task that has its result already, because its worker died just after it was stored, keeps that end.

    Returns:
        Is it written? Not yet where the body of its chord is claimed: others' ends do not wait for that.

    Raises:
        Exception: Of the result backend: it does not answer, or cannot store.
    """
    task, request = registered(app, ending.task), request_of(app, ending)
    backend = backend_of(app, task)
    if is_body_claimed(backend, request):  # whoever wrote this end before us may have died there
        return False
    stored = stored_end(backend, ending.task_id, ending.first_run_ms) if ending.first_run_ms else None
    # Celery's workers store REVOKED when they hear of a revoke, and nothing of what goes with it
    if stored and not (ending.why in REASONS and stored["status"] == states.REVOKED):
        repeat_end(backend, stored, request)
        return True
    end = _revoke if ending.why in REASONS else _fail
    kind, fields = end(ending, task, backend, request)
    if getattr(task, "send_events", True):
        events.send(app, kind, uuid=ending.task_id, **fields)
    return True


def _revoke(ending: Ending, task: Any, backend: Any, request: Context) -> Event:
    is_expired, is_stored = ending.why == "expired", _is_stored(request, task)
    backend.mark_as_revoked(ending.task_id, REASONS[ending.why], request=request, store_result=is_stored)
    if task is not None:
        signals.task_revoked.send(task, request=request, terminated=False, signum=None, expired=is_expired)
    words = "Task %s[%s] is revoked: %s"
    logger.info(words, ending.task, ending.task_id, ending.why, extra=_facts(ending, request))
    return "task-revoked", {"terminated": False, "signum": None, "expired": is_expired}


def _fail(ending: Ending, task: Any, backend: Any, request: Context) -> Event:
    error = LeaseLost(_why_lost(ending))
    backend.mark_as_failure(ending.task_id, error, request=request, store_result=_is_stored(request, task))
    if task is not None:
        signals.task_failure.send(
            sender=task, task_id=ending.task_id, exception=error, args=request.args, kwargs=request.kwargs,
            traceback=None, einfo=None,
        )  # fmt: skip
    words = "Task %s[%s] has failed: %s"
    logger.error(words, ending.task, ending.task_id, error, extra=_facts(ending, request))
    return "task-failed", {"exception": repr(error), "traceback": None}


def _facts(ending: Ending, request: Context) -> dict[str, str]:
    header = getattr(request, HEADER, None) or {}
    return facts(task_id=ending.task_id, pool=header.get("pool") or "")


def request_of(app: Any, ending: Ending) -> Context:
    """The request of a held message, as its task would have seen it; without arguments where we may not read them."""
    envelope = json.loads(ending.message.replace(CLAIM_HOLE, "null").replace(QUEUE_HOLE, ""))
    message = Message(
        body=base64.b64decode(envelope["body"]),
        content_type=envelope["content-type"],
        content_encoding=envelope["content-encoding"],
        headers=envelope["headers"],
        properties=envelope["properties"],
        accept=prepare_accept_content(app.conf.accept_content),
    )
    try:
        args, kwargs, embed = message.decode()
    except (ContentDisallowed, DecodeError, TypeError, ValueError) as error:  # refused, broken, or of another shape
        logger.warning("%s[%s] ends without its callbacks: %s", ending.task, ending.task_id, error)
        args, kwargs, embed = (), {}, None
    properties = envelope["properties"]
    delivery_info = {"priority": properties.get("priority"), "exchange": "", "routing_key": None, "redelivered": False}
    return Context(
        envelope["headers"], args=args, kwargs=kwargs, delivery_info=delivery_info, properties=properties,
        reply_to=properties.get("reply_to"), correlation_id=properties.get("correlation_id"), **(embed or {}),
    )  # fmt: skip


def _is_stored(request: Context, task: Any) -> bool:
    """As `Request.store_errors` in celery/worker/request.py."""
    return not is_result_ignored(request, task) or getattr(task, "store_errors_even_if_ignored", False)


def _why_lost(ending: Ending) -> str:
    if ending.why == "unstarted":
        return "it was given out to several GPUs, and no worker could start it"
    if ending.why == "damaged":
        return "what the ledger knew of it was damaged from outside, and it could not be given out"
    times = "once" if ending.deliveries == 1 else f"{ending.deliveries} times"
    how = DETAILS.get(ending.how, ending.how) or "its process or its worker died"
    return f"{how}; it was given out {times}"
