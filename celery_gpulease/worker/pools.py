"""The pools whose tasks run in main's own process, `solo` and `threads`: what a task raises there ends no worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.concurrency import get_implementation
from celery.concurrency.base import BasePool
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.utils.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

logger = get_logger(__name__)


def gpu_pool(named: Any) -> type:
    """The pool class of a GPU's worker, over Celery's or the user's own (`worker_pool`, `-P`)."""
    pool: type = get_implementation(named)
    if issubclass(pool, (PreforkPool, InMainPool)):
        return pool
    return type(pool.__name__, (InMainPool, pool), {"__module__": pool.__module__, "__doc__": pool.__doc__})


class InMainPool(BasePool):
    """A pool without processes of its own: it cannot stop a task.

    In prefork whatever leaves a task, or a callback, is caught (`billiard.pool`). Here it would end the worker (solo),
    or its thread before Celery learns that the task is over (threads), and a `-c 1` worker never works again.
    """

    _is_stopping = False

    def stop(self) -> None:
        """Waits for what runs, once, and not before the pool is closed.

        Celery's cold shutdown stops the pool in its signal handler too (`celery.apps.worker.on_cold_shutdown`): the
        handler may have interrupted the very code whose lock a stop needs, and here nothing ends sooner by it.
        """
        if self._state == self.CLOSE and not self._is_stopping:
            self._is_stopping = True
            super().stop()

    def apply_async(self, target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """As in Celery; what is raised goes to the callback, as an ExceptionInfo in place of a result.

        Celery itself hands it every BaseException so (`celery.concurrency.base.apply_target`), as a WorkerLostError.
        """
        for name in ("callback", "accept_callback"):
            options[name] = _logged(options.get(name))
        return super().apply_async(_caught(target), args, kwargs, **options)


def _caught(target: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception:  # noqa: BLE001
            return ExceptionInfo()

    return run


def _logged(callback: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if callback is None:
        return None

    def call(*args: Any, **kwargs: Any) -> None:
        try:
            callback(*args, **kwargs)
        except Exception:
            logger.exception("%r has failed, and the worker goes on", callback)

    return call
