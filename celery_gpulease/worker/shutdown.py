"""How a GPU's worker stops: no claim from the signal on, and an end in time however Celery's pool fares."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from celery.platforms import EX_FAILURE
from celery.signals import worker_shutting_down
from celery.utils.log import get_logger

from celery_gpulease.worker.pools import InMainPool
from celery_gpulease.worker.processes import is_gone
from celery_gpulease.worker.service import LONGEST_LEAVE

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

#: Seconds that Celery's pool gets for a cold shutdown; Kubernetes kills after 30.
LONGEST_COLD_STOP: Final = 15.0
#: Seconds between two looks at killed children.
LOOK_EVERY: Final = 0.2


def close_at_once(worker: Any, close: Callable[[], object]) -> None:
    """Calls `close` at the signal to stop, however long the event loop is kept from stopping.

    That is a task which runs in it (solo), or a soft shutdown (Celery 5.5), which waits in a signal handler and sends
    no signal of its own before. A handler may take no lock: so a thread closes.
    """

    def begin_to_close(**_: Any) -> None:
        Thread(target=close, daemon=True).start()

    def close_and_wait() -> None:
        begin_to_close()
        if not isinstance(worker.pool, InMainPool):  # what cannot be stopped is waited for anyway
            wait()

    worker_shutting_down.connect(begin_to_close, weak=False, dispatch_uid="gpulease")
    wait = getattr(worker, "wait_for_soft_shutdown", lambda: None)
    worker.wait_for_soft_shutdown = close_and_wait


def end_at_last(gpu_worker: GPUWorker, has_left: Event, leave: Callable[[], object]) -> None:
    """A cold shutdown is over in time, whatever Celery's pool waits for.

    It may wait without end for the rest of a message, of a child that was killed while it wrote (`_flush_outqueue` in
    celery/concurrency/asynpool.py).
    """
    if has_left.wait(LONGEST_COLD_STOP):
        return
    logger.critical("Celery's pool does not end: this worker ends without it")
    if _kill(gpu_worker.presence.children):  # else one hangs in a driver: the lease ends with its ttl
        leave()
    os._exit(EX_FAILURE)


def _kill(children: tuple[tuple[int, int], ...]) -> bool:
    """Kills them; are they gone within a while?"""
    for pid, _ in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + LONGEST_LEAVE
    while not all(is_gone(*child) for child in children) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    return all(is_gone(*child) for child in children)
