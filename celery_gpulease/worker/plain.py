"""Celery's consumer on a worker without `--gpu`: a GPU task that reaches it is held, whatever its request class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.imports import symbol_by_name
from celery.worker.consumer import Consumer

from celery_gpulease.sending.stray import StrayRequest
from celery_gpulease.sending.task import GPUTask, LeasedTask
from celery_gpulease.worker.strays import PlainStrays

if TYPE_CHECKING:
    from collections.abc import Callable


def plain_consumer(base: type) -> type:
    """The consumer class of a plain worker, over Celery's or the user's own (`worker_consumer`)."""
    return type("PlainConsumer", (PlainConsumer, base), {})


class PlainConsumer(Consumer):
    """The consumer of a plain worker."""

    _strays: PlainStrays | None = None

    def __init__(self, on_task_request: Any, *args: Any, **options: Any) -> None:
        self._run = on_task_request
        super().__init__(self._hold_or_run, *args, **options)

    def _hold_or_run(self, request: Any) -> None:
        """Celery would ask `revoked` only when its pool has a free process."""
        if not (isinstance(request, StrayRequest) and request.revoked()):
            self._run(request)

    def hand_over(self, request: Any) -> None:
        """Lets a thread hold it, which most plain workers never need."""
        if self._strays is None:
            self._strays = PlainStrays(self)
            self._strays.start()
            if self.hub:
                self._strays.register(self.hub)
        self._strays.add(request)

    def register_with_event_loop(self, hub: Any) -> None:
        """Celery calls this each time when it begins to consume."""
        super().register_with_event_loop(hub)
        if self._strays is not None:
            self._strays.register(hub)

    def perform_pending_operations(self) -> None:
        """Celery calls this between two looks at a broker that it has to ask (`synloop` in celery/worker/loops.py)."""
        super().perform_pending_operations()
        if self._strays is not None and not self.hub:
            self._strays.end_all()

    def shutdown(self) -> None:
        """What is not held by now the broker delivers to another."""
        if self._strays is not None:
            self._strays.stop()
        super().shutdown()

    def bucket_for_task(self, task: Any) -> Any:
        """The rate of a GPU task is looked at where it runs."""
        return None if isinstance(task, GPUTask) else super().bucket_for_task(task)

    def update_strategies(self) -> None:
        """What may need a lease gets our request, before Celery builds the strategies that use it."""
        for task in self.app.tasks.values():
            if isinstance(task, LeasedTask):
                task.Request = stray_request(symbol_by_name(task.Request), self.hand_over)
        super().update_strategies()


def stray_request(base: type, hand_over: Callable[[Any], None]) -> type:
    """The request class of a GPU task, over our own or the user's (`Task.Request`)."""
    if getattr(base, "hand_over", None) == hand_over:  # the consumer restarts, and asks again
        return base
    bases = (base,) if issubclass(base, StrayRequest) else (StrayRequest, base)
    return type("StrayRequest", bases, {"hand_over": staticmethod(hand_over)})
