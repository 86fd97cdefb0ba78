"""A GPU's worker in a thread of the test's own process."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from celery._state import _set_task_join_will_block
from kombu.asynchronous import set_event_loop

from celery_gpulease.installed import installation
from celery_gpulease.lease import board
from celery_gpulease.ledger.views import gpu_rows
from celery_gpulease.loops import Loop
from celery_gpulease.model import DEFAULT_POOL, GPU, unique
from celery_gpulease.sending.task import GPUTask
from celery_gpulease.testing.ledger import close_backend
from celery_gpulease.testing.process import Controller, process_kept
from celery_gpulease.testing.waiting import LOOK_EVERY, wait_for
from celery_gpulease.worker import gpu_worker as gpu_workers
from celery_gpulease.worker.bootsteps import WorkerRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_gpulease.testing.ledger import PrivateLedger
    from celery_gpulease.worker.gpu_worker import Execution

#: Seconds that the worker gets to start, and to stop.
LONGEST_START: Final = 30.0
LONGEST_STOP: Final = 10.0


class InProcessWorker:
    """A GPU's worker, as a test sees it.

    Attributes:
        gpu: The GPU that it serves: its tasks' `self.gpu` is equal to it.
        pools: The pools that it serves, in order of preference.
    """

    def __init__(self, ledger: PrivateLedger, gpu: int, pools: tuple[str, ...]) -> None:
        self._private, self.pools = ledger, pools
        self._host = installation(ledger.app).settings.host
        self.gpu = GPU(f"{self._host}:{gpu}", gpu)
        self._threads_before = set(threading.enumerate())
        self._thread = threading.Thread(target=self._run, name=f"worker of {self.gpu.id}", daemon=True)
        self._controller: Controller | None = None
        self._error: BaseException | None = None

    def expire_lease(self, timeout: float = 10.0) -> None:
        """Lets the lease of what runs end, and go to another holder. The task learns of it at its next `check()`.

        When this returns, `self.lease.lost` is True in the task. It may be called by the test, which then waits here
        until a task runs, or by anything that the task itself calls. As with every pool that cannot stop a task, its
        own end counts then: a task that lets LeaseLost through has failed with it. Where it is stopped instead
        (prefork), it is given out again. The other holder gives the GPU back at once.

        Args:
            timeout: Seconds to wait for a task to run, and for it to be told.

        Raises:
            AssertionError: No task runs here, or it has ended meanwhile.
        """
        execution = wait_for(self._running, timeout, f"a task that runs on GPU {self.gpu.id}")
        key, holder = self._private.ledger.keys.lease(str(self.gpu.id)), f"another-{unique()}"
        client = self._private.ledger.client
        with client.pipeline() as at_once:  # it vanishes, which is an event: the heartbeat comes now
            at_once.delete(key).set(key, holder, px=60_000).execute()
        try:
            fence = execution.claim.fence
            wait_for(
                lambda: board.is_lost(fence) or _has_ended(execution),
                timeout,
                "the task to be told that its lease is lost",
            )
        finally:
            if client.get(key) == holder:
                client.delete(key)
        assert board.is_lost(fence), "the task has ended meanwhile"  # noqa: S101

    def wait_until_idle(self, timeout: float = 10.0) -> None:
        """Waits until all that was sent to this GPU's pools so far has ended, and what that has sent to them too.

        What is not due yet (a countdown, a retry) is not waited for.

        Args:
            timeout: Seconds.

        Raises:
            AssertionError: It has not ended by then; the message says what waits and what runs.
        """
        wait_for(lambda: not self._waiting() and self._state() != "leased", timeout, self._tell)

    def start(self) -> None:
        """Starts it, and waits until its GPU can be given to a task.

        Raises:
            GPULeaseError: A setting is wrong.
        """
        self._thread.start()
        wait_for(self._is_ready_or_over, LONGEST_START, f"the worker of GPU {self.gpu.id} to start")
        if isinstance(self._error, WorkerRefused) and self._error.__cause__:
            raise self._error.__cause__
        if self._error is not None:
            raise self._error
        assert self._thread.is_alive(), "the worker has ended; its log says why"  # noqa: S101
        wait_for(lambda: self._state() != "offline", LONGEST_START, f"the listener of GPU {self.gpu.id}")

    def stop(self) -> bool:
        """Ends it, and what runs: that loses its lease, and may still go on to its own end.

        Returns:
            Is it over, with all of its threads?
        """
        if self._controller is not None and gpu_workers.current is not None and self._thread.is_alive():
            gpu_workers.current.close()  # nothing more begins, whatever has reached it already
            self._controller.stop_soon()
            if self._running():
                with suppress(AssertionError):  # it has just ended
                    self.expire_lease(LONGEST_STOP)
            self._thread.join(LONGEST_STOP)
        return not self._thread.is_alive() and self._have_ended(self._loops())

    @property
    def running(self) -> str:
        """Names what runs."""
        execution = self._running()
        return str(execution.request) if execution else "nothing"

    def close(self) -> None:
        """Nothing of a worker that is over is left."""
        if self._controller is not None:
            self._controller.close_door()

    def _run(self) -> None:
        """The thread. All is made here: what handlers of `worker_init` do to it must not reach the test's thread.

        Django's close its connections to the database.
        """
        app = self._private.app
        app.set_current()
        try:
            self._controller = Controller(
                app=app,
                hostname=f"gpu{self.gpu.index}@{self._host}",
                pool="solo",
                without_heartbeat=True,
                without_mingle=True,
                without_gossip=True,
                gpu=str(self.gpu.index),
                gpu_pools=",".join(self.pools),
                gpu_is_real=False,
            )
            _set_task_join_will_block(False)  # that is for this process: the test shall wait for results  # noqa: FBT003
            self._controller.start()
        except BaseException as error:  # noqa: BLE001
            self._error = error
        finally:
            close_backend(app)  # of this thread

    def _is_ready_or_over(self) -> bool:
        is_ready = self._controller is not None and self._controller.is_ready.is_set()
        return is_ready or not self._thread.is_alive()

    def _state(self) -> str:
        return next((row.state for row in gpu_rows(self._private.ledger) if row.id == self.gpu.id), "offline")

    def _waiting(self) -> list[dict[str, Any]]:
        rows = self._private.pending()
        return [row for row in rows if row["position"] and (row["pool"] in self.pools or row["gpu"] == self.gpu.id)]

    def _tell(self) -> str:
        names = ", ".join(f"{row['task']}[{row['task_id']}]" for row in self._waiting())
        return f"GPU {self.gpu.id} to be idle; there runs {self.running}, and there wait: {names or 'none'}"

    def _running(self) -> Execution | None:
        """What its process has begun, and has not ended yet."""
        worker = gpu_workers.current
        executions = worker.executions() if worker is not None else []
        return next((one for one in executions if board.is_begun(one.claim.fence) and not _has_ended(one)), None)

    def _loops(self) -> list[Loop]:
        threads = set(threading.enumerate()) - self._threads_before
        return [thread for thread in threads if isinstance(thread, Loop)]

    def _have_ended(self, loops: Iterable[Loop]) -> bool:
        """Waits for threads that were told to end. The listener looks for that when it is woken, or once a second."""
        here, client = self._private.ledger.keys.here(str(self.gpu.id)), self._private.ledger.client
        deadline = time.monotonic() + LONGEST_STOP
        while any(one.is_alive() for one in loops) and time.monotonic() < deadline:
            client.publish(here, "over")
            for one in loops:
                one.join(LOOK_EVERY)
        return not any(one.is_alive() for one in loops)


def _has_ended(execution: Execution) -> bool:
    return execution.is_over or board.is_released(execution.claim.fence)


#: The worker of an earlier test that did not end, and what is to be undone when it has.
_left: tuple[InProcessWorker, ExitStack] | None = None


@contextmanager
def start_gpu_worker(
    ledger: PrivateLedger, *, gpu: int = 0, pools: str | Iterable[str] | None = None
) -> Iterator[InProcessWorker]:
    """Starts a GPU's worker in this process, and ends it with the block.

    It is Celery's own worker with the pool `solo`, in a thread, and all of ours but what looks at real devices and what
    guards against tasks that hold the GIL for longer than a lease lasts. One process can have one at a time.

    Args:
        ledger: Of the app whose tasks it runs; its host is the GPU's.
        gpu: The GPU's index. It need not be there.
        pools: The pools that it serves, in order of preference, as a list or as for `--gpu-pools`. By default those
            that the app's tasks name, `default` first.

    Yields:
        The worker, when it serves.

    Raises:
        ConfigurationError: A setting or a pool's name is wrong.
        RuntimeError: Another worker is in this process, or a task of an earlier one still runs.
    """
    _refuse_second()
    worker = InProcessWorker(ledger, gpu, _pools_of(ledger.app, pools))
    undo = ExitStack()
    undo.callback(worker.close)
    undo.enter_context(process_kept(ledger.app))
    try:
        worker.start()
        # for other workers of this process: Celery would give them its event loop and its queue
        set_event_loop(None)
        ledger.app.__dict__.pop("amqp", None)
        yield worker
    finally:
        _end(worker, undo)


def _end(worker: InProcessWorker, undo: ExitStack) -> None:
    global _left  # noqa: PLW0603
    if worker.stop():
        undo.close()
        return
    _left = worker, undo
    message = (
        f"the worker of GPU {worker.gpu.id} does not end: {worker.running} runs on in a thread, which nobody can stop. "
        "Let the task end by itself, or call self.lease.check(), which raises LeaseLost now"
    )
    raise RuntimeError(message)


def _refuse_second() -> None:
    global _left  # noqa: PLW0603
    if _left is not None:
        worker, undo = _left
        if not worker.stop():
            message = f"{worker.running} of an earlier test still runs in this process, which can serve one GPU only"
            raise RuntimeError(message)
        undo.close()
        _left = None
    if gpu_workers.current is not None:
        message = f"this process serves GPU {gpu_workers.current.device.id} already: start one GPU's worker at a time"
        raise RuntimeError(message)


def _pools_of(app: Any, named: str | Iterable[str] | None) -> tuple[str, ...]:
    if named is None:
        of_tasks = {task.pool for task in app.tasks.values() if isinstance(task, GPUTask)}
        return (DEFAULT_POOL, *sorted(of_tasks - {DEFAULT_POOL}))
    return tuple(named.split(",") if isinstance(named, str) else named)
