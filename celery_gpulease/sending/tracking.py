"""`gpulease_track_held`: the state HELD in the result backend, until the task starts.

It is stored before HOLD, so that no worker can have the task yet: whatever a run stores comes later, and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import states
from celery.utils.log import get_logger

from celery_gpulease.ends import UNREADABLE, backend_of, is_result_ignored, registered
from celery_gpulease.ledger.views import place_at_the_end
from celery_gpulease.model import HELD

if TYPE_CHECKING:
    from celery.app.task import Context

    from celery_gpulease.installed import Installation
    from celery_gpulease.model import Held

logger = get_logger(__name__)


def tell_held(installed: Installation, held: Held, request: Context) -> None:
    """Says in the result backend that a message is held, where that is asked for, just before it is.

    Args:
        installed: Of the app that sends it.
        held: The message.
        request: The task's, as the backend wants it.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    if not _is_sent_by_its_run(held, request):
        _tell(installed, held, request)


def _is_sent_by_its_run(held: Held, request: Context) -> bool:
    """A retry stays RETRY; what replaces a run has the state that the run had."""
    return bool(held.run_ticket or request.retries)


def _tell(installed: Installation, held: Held, request: Context) -> None:
    task = registered(installed.app, held.task)
    backend = backend_of(installed.app, task)
    if backend.as_uri() in UNREADABLE or is_result_ignored(request, task):
        return
    place = place_at_the_end(installed.ledger, held)
    if place is None:  # this task id is held, or runs, already
        return
    try:
        if backend.get_task_meta(held.task_id, cache=False)["status"] in (states.PENDING, HELD):
            backend.store_result(held.task_id, {"pool": held.pool, "position": place.position}, HELD, request=request)
    except Exception:  # whatever backend: a task is not lost for a state
        logger.exception("%s[%s] is held, and its state cannot be stored", held.task, held.task_id)
