"""Celery's worker as a thread of the test's process, and what it does to that process undone."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import billiard.pool
import pytest
from celery import signals
from celery._state import _set_task_join_will_block, task_join_will_block
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_OK
from celery.worker import WorkController
from kombu.asynchronous import get_event_loop, set_event_loop

from celery_gpulease.installed import installation
from celery_gpulease.worker import gpu_worker as gpu_workers
from celery_gpulease.worker.signals import disconnect

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What a worker sets on every task of its app.
OF_TASKS: Final = ("Request", "track_started", "__trace__")
#: What it sets for its process, and its tasks for what they start.
VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPULEASE_RUN")


class Controller(WorkController):
    """Celery's worker: one can wait until it consumes, and stop it alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_ready = threading.Event()
        self._door = os.pipe()

    def on_consumer_ready(self, _: Any) -> None:
        """Celery calls this when it begins to consume."""
        self.hub.add_reader(self._door[0], self._shut_down)
        self.is_ready.set()

    def stop_soon(self) -> None:
        """A warm shutdown: what runs may end. Celery's own flags for it would stop every worker of this process."""
        os.write(self._door[1], b"\n")

    def _shut_down(self) -> None:
        raise WorkerShutdown(EX_OK)

    def close_door(self) -> None:
        """Nobody can stop it any more."""
        for end in self._door:
            os.close(end)


@contextmanager
def process_kept(app: Any) -> Iterator[None]:
    """What a worker does to its process, and to its app, is undone: here it is the test's, and the next worker's."""
    installed, loop, will_block = installation(app), get_event_loop(), task_join_will_block()
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.setenv(name, "")  # remembers what it was, also where it was not there
            patch.delenv(name)
        for task in app.tasks.values():
            for name in OF_TASKS:
                patch.setattr(task, name, getattr(task, name, None), raising=False)
        patch.setattr(app.clock, "mutex", app.clock.mutex)
        patch.setattr(billiard.pool, "Lock", billiard.pool.Lock)
        patch.setattr(installed, "worker", None)
        patch.setattr(installed, "sends_task_events", installed.sends_task_events)
        set_event_loop(None)  # else it would take that of another worker of this process
        try:
            yield
        finally:
            _set_task_join_will_block(will_block)
            set_event_loop(loop)
            signals.worker_shutting_down.disconnect(dispatch_uid="gpulease")
            disconnect()
            gpu_workers.set_current(None)
