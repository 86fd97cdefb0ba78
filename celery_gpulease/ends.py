"""What is stored of a task, and where. A worker may die after it has stored an end, and before its lease is released.

Celery sends callbacks and the next task of a chain before it stores a success (celery/app/trace.py); chord parts, and
the errbacks of a failure, come after. So what may be missing is repeated by Celery's own calls, at least once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from celery import states
from celery.utils.time import maybe_iso8601, maybe_make_aware

if TYPE_CHECKING:
    from datetime import datetime

#: Backends that cannot be asked: there is none, or results are messages that only the caller receives.
UNREADABLE: Final = ("disabled://", "rpc://")
#: What Celery's Redis backend puts after a group's name while somebody is about to send the body of its chord, and the
#: value when it is sent (`on_chord_part_return` in celery/backends/redis.py, from 5.7 on).
BODY_CLAIM, BODY_SENT = ".c", b"done"
#: Seconds between two looks at it.
LOOK_EVERY: Final = 0.1


def stored_end(backend: Any, task_id: str, since_ms: int) -> dict[str, Any] | None:
    """What the result backend says of a task that has ended; None where it has not, or cannot be asked.

    Args:
        backend: Of the task.
        task_id: Its id, which an earlier task may have had.
        since_ms: When its first run began. What was stored before is that other task's end; should the clocks of
            Redis and the worker differ by more than the run took, the task runs once more rather than never.
    """
    if backend.as_uri() in UNREADABLE:
        return None
    meta: dict[str, Any] = backend.get_task_meta(task_id, cache=False)
    is_its = meta["status"] in states.READY_STATES and _done_ms(meta.get("date_done")) >= since_ms
    return meta if is_its else None


def _done_ms(date_done: str | datetime | None) -> float:
    """The epoch's milliseconds of a result's date, which is UTC where it does not say."""
    moment = maybe_iso8601(date_done)
    if moment is None:
        return 0.0
    return float(maybe_make_aware(moment).timestamp() * 1000)


def repeat_end(backend: Any, meta: dict[str, Any], request: Any) -> None:
    """Stores this end once more (the next run may have marked it as started), with all that Celery does beside that.

    Args:
        backend: Of the task.
        meta: From `stored_end`.
        request: The task's.
    """
    state, result = meta["status"], meta.get("result")
    if state == states.SUCCESS:
        backend.mark_as_done(request.id, result, request)
    elif state == states.REVOKED:
        backend.mark_as_revoked(request.id, str(result), request)
    else:
        backend.mark_as_failure(request.id, result, meta.get("traceback"), request)


def is_body_claimed(backend: Any, request: Any) -> bool:
    """Is the body of this task's chord about to be sent by somebody, all parts being counted?

    Who died there keeps it for twice `result_chord_join_timeout`, or for half a minute. Before that is over nobody else
    sends it; afterwards whoever repeats the end of a part does.
    """
    return _body_claim(backend, request) not in (None, BODY_SENT)


def has_outlasted_body_claim(backend: Any, request: Any) -> bool:
    """Waits until it is not; was the body claimed, and not sent?"""
    was_claimed = False
    while (claim := _body_claim(backend, request)) not in (None, BODY_SENT):
        was_claimed = True
        time.sleep(LOOK_EVERY)
    return was_claimed and claim is None


def _body_claim(backend: Any, request: Any) -> bytes | None:
    if not (request.group and request.chord and hasattr(backend, "get_key_for_group") and hasattr(backend, "client")):
        return None
    claim: bytes | None = backend.get(backend.get_key_for_group(request.group, BODY_CLAIM))
    return claim


def is_result_ignored(request: Any, task: Any) -> bool:
    """Will no result be stored, as far as this process knows?

    Args:
        request: The task's Context: what its sender asked for comes first.
        task: None where this process does not know it.
    """
    asked = request.__dict__.get("ignore_result")
    return bool(getattr(task, "ignore_result", False) if asked is None else asked)


def registered(app: Any, name: str) -> Any:
    """The task of this name; None where this process does not know it.

    An app that must not be finalized by a look at its tasks is not: a sender by name needs none of them.
    """
    tasks = app.tasks if app.finalized or app.autofinalize else app._tasks  # noqa: SLF001
    return tasks.get(name)


def backend_of(app: Any, task: Any) -> Any:
    """The result backend of a task, which may have its own; the app's where the task is None."""
    return app.backend if task is None else task.backend
