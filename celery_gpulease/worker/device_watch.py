"""Looks at the device, where NVML is there: a GPU that is unwell, or that somebody else uses, gets no work.

Never while a task runs: before this worker consumes, since the last one may have left something; when a task was
killed, before its GPU is offered again; and at the heartbeat's pace while the GPU is free.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from celery.utils.log import get_logger

from celery_gpulease.loops import Loop
from celery_gpulease.worker.nvml import NVML
from celery_gpulease.worker.occupants import trouble_of

if TYPE_CHECKING:
    from celery_gpulease.worker.gpu_worker import Execution, GPUWorker

logger = get_logger(__name__)

#: Seconds after which a device has forgotten a process that has ended.
SETTLES_AFTER: Final = 1.0
#: Seconds that anybody waits for a look, which is given up before.
LONGEST_WAIT: Final = 60.0


class DeviceWatch(Loop):
    """A thread of its own: a driver that hangs keeps no lease from being renewed."""

    def __init__(self, gpu_worker: GPUWorker) -> None:
        super().__init__("device")
        gpu_worker.is_looked_at = self.has_looked_since
        self._gpu_worker = gpu_worker
        self._nvml = NVML()
        self._number = self._done = 0  # of the look that has begun last, and of the one that has ended last
        self._has_looked = threading.Event()

    def wait_until_looked(self) -> None:
        """Waits for the first look: before it this worker must not be taken for ready."""
        if not self._has_looked.wait(LONGEST_WAIT):
            self._say_unseen()

    def has_looked_since(self, execution: Execution) -> bool:
        """Was the device looked at since the process of this run, which was killed, is gone? It will be, else."""
        if execution.pid is None or self._gpu_worker.stops:  # it has ended by itself; or the next worker looks
            return True
        if execution.look is None:
            execution.look = self._number + 1
            self.wake()
        if self._done >= execution.look:
            return True
        since = execution.gone_since or time.monotonic()
        if time.monotonic() - since < LONGEST_WAIT:
            return False
        self._say_unseen()
        return True

    def _say_unseen(self) -> None:
        logger.warning("Nobody knows whether GPU %s is well, and it is served", self._gpu_worker.device.id)

    def stop(self) -> None:
        """Ends the thread, and the process that asks NVML."""
        super().stop()
        self._nvml.close()

    def turn(self) -> float:
        """One look, where no task runs; what it finds is told to the ledger."""
        self._number += 1
        number, executions = self._number, self._gpu_worker.executions()
        if any(not one.is_over for one in executions):
            self._done = number  # nobody offers it now
        elif all(one.look is not None for one in executions):  # else a process is to be gone first
            trouble = self._look()
            if not self.is_over:  # an answer that was cut short says nothing
                self._tell(trouble, has_ended=bool(executions) or not self._has_looked.is_set())
            self._done = number
            self._has_looked.set()
        return self._gpu_worker.ledger.settings.heartbeat_interval

    def _look(self) -> str:
        """What is wrong. What may be over in a moment is looked at twice."""
        trouble, may_pass = self._ask()
        if may_pass:
            time.sleep(SETTLES_AFTER)
            trouble, _ = self._ask()
        return trouble

    def _ask(self) -> tuple[str, bool]:
        one = self._gpu_worker
        return trouble_of(self._nvml.ask("look", one.device.uuid), one.has_run_in)

    def _tell(self, trouble: str, *, has_ended: bool) -> None:
        """Each time, also that nothing is wrong: what Redis knows of it may be lost, or old."""
        gpu = self._gpu_worker.device.id
        answer = self._gpu_worker.ledger.quarantine_device(gpu, trouble, has_ended=has_ended)
        if answer == "quarantined":
            logger.error("GPU %s is quarantined: %s", gpu, trouble)
        elif answer == "opened":
            logger.warning("GPU %s is open again: its device is well, and nobody else uses it", gpu)
