"""How `task_routes` and queues are looked up for what goes to no queue."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from celery.app.routes import Router
from kombu import Exchange, Queue

from celery_gpulease.model import RECONCILE_TASK, is_gpu_queue
from celery_gpulease.notices import warn
from celery_gpulease.sending.destination import goes_to_a_gpu
from celery_gpulease.sending.maps import road_of
from celery_gpulease.sending.router import ROUTED_POOL


class HoldingRouter:
    """Celery's router, and what it makes of a GPU task's queue: the task goes to none.

    So a queue that a GPU task names need not exist and is not made, also where `task_create_missing_queues` is False.
    What stands in the route instead is the default queue: Celery sends a GPU body's `chord_unlock` to where the body
    would go (`fallback_chord_unlock` in celery/backends/base.py), and asks it for its exchange where there are quorum
    queues (`Celery.send_task`).
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._warned: set[str] = set()
        self._of_gpu_tasks = Router(router.routes, _AnyQueue(router.queues), create_missing=True, app=router.app)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    def route(
        self, options: dict[str, Any], name: str, args: Any = (), kwargs: Any = None, task_type: Any = None
    ) -> dict[str, Any]:
        """The options of a message, with those that its route adds."""
        if name == RECONCILE_TASK:  # it is no message in the end: no router of the user's need know it
            return options
        app = self._router.app
        # a route may be asked for by another name; a map's is that of the task that it calls, or its whole signature
        road = road_of(name if task_type is None else task_type.name, args, kwargs)
        router = self._of_gpu_tasks if goes_to_a_gpu(app, road, {}, options) else self._router
        name = road[0] if isinstance(name, Mapping) else name
        routed: dict[str, Any] = router.route(options, name, args, kwargs, task_type)
        if router is self._of_gpu_tasks or routed.get(ROUTED_POOL):
            default = app.conf.task_default_queue
            self._warn_of_queue(name, getattr(routed.get("queue"), "name", None), default)
            routed["queue"] = self._of_gpu_tasks.queues[default]
        return routed

    def _warn_of_queue(self, name: str, queue: str | None, default: str) -> None:
        if queue is None or queue == default or is_gpu_queue(queue) or name in self._warned:
            return
        self._warned.add(name)
        warn(f"{name} is a GPU task: its queue {queue!r} is ignored. Name a pool instead, with pool=…")


class _AnyQueue(dict[str, Queue]):
    """An app's queues, and any other."""

    def __missing__(self, name: str) -> Queue:
        return Queue(name, Exchange(name), routing_key=name)


@cache
def shown_queue(pool: str) -> Queue:
    """What signals and events of sending show as the queue; it is never declared."""
    return Queue(f"gpu.pool.{pool}", Exchange(""), routing_key=f"gpu.pool.{pool}")
