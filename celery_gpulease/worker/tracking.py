"""The end of HELD (`sending/tracking.py`): what a GPU's worker starts is held no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import signals
from celery.utils.log import get_logger

from celery_gpulease.ends import UNREADABLE, is_result_ignored
from celery_gpulease.model import HELD

if TYPE_CHECKING:
    from celery_gpulease.settings import Settings

logger = get_logger(__name__)


def track_starts(app: Any, settings: Settings) -> None:
    """Lets every task of this worker say STARTED, where it would else be called HELD while it runs.

    Called before the fork, since Celery reads `track_started` when it builds a process's tracers.
    """
    if not settings.track_held:
        return
    for task in app.tasks.values():
        task.track_started = True
    signals.task_prerun.connect(_forget_held, dispatch_uid="gpulease-held")


def _forget_held(task_id: str, task: Any, **_: Any) -> None:
    """Nothing follows HELD where a task ignores its results, which a sender by name could not know."""
    backend = task.backend
    is_ignored = task.ignore_result or is_result_ignored(task.request, task)  # Celery 5.4 asks the task only
    if task.request.is_eager or backend.as_uri() in UNREADABLE or not is_ignored:
        return
    try:
        if backend.get_task_meta(task_id, cache=False)["status"] == HELD:
            backend.forget(task_id)
    except Exception:
        logger.exception("%s[%s] runs, and its state stays %s", task.name, task_id, HELD)
