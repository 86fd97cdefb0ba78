"""`celery.map` and `celery.starmap`, which `chunks` sends too: one run that calls another task, as a function.

They take the road of the task that they call: where that is a GPU task they are held and leased, and it has the lease
of their run. Celery itself routes them by it (`_basemap` in celery/canvas.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.sending.task import GPUTask

if TYPE_CHECKING:
    from collections.abc import Sequence

MAPS: Final = ("celery.map", "celery.starmap")


def called_by(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The name of the task that a map's arguments name; None for every task that is no map."""
    if name not in MAPS:
        return None
    signature = kwargs.get("task", args[0] if args else None)
    return signature.get("task") if isinstance(signature, Mapping) else None


def road_of(name: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names of the tasks whose road a message takes: its own, and before it that of the task that it calls."""
    called = called_by(name, args or (), kwargs or {})
    return (name,) if called is None else (called, name)


def gpu_task_of(request: Any) -> GPUTask | None:
    """The GPU task that a request runs, or calls; None where it does neither."""
    road = road_of(request.task.name, request.args, request.kwargs)
    tasks = (request.app.tasks.get(name) for name in road)
    return next((task for task in tasks if isinstance(task, GPUTask)), None)
