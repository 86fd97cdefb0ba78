"""The neighbours: the workers of this host's other GPUs. When one dies its task need not wait for the lease's ttl."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from celery.utils.log import get_logger

from celery_gpulease.facts import facts
from celery_gpulease.loops import Loop
from celery_gpulease.worker.joining import describe
from celery_gpulease.worker.leftovers import end_left_by
from celery_gpulease.worker.processes import is_certainly_dead, open_living

if TYPE_CHECKING:
    from celery_gpulease.model import Presence
    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

#: Seconds between two looks at a worker that is about to be gone: its processes end one after the other.
LOOK_EVERY: Final = 0.02


class Neighbours(Loop):
    """Sleeps until a process of a neighbour ends, and buries the neighbour once all of its processes are gone.

    It asks who they are at the heartbeat's pace, when one comes, and when a process has ended: what a worker said last
    names all of its processes. Where the kernel does not wake us, that pace remains; where we cannot see a neighbour's
    processes (another container), its ttl decides. All neighbours may see a death: the ledger lets one bury.
    """

    def __init__(self, gpu_worker: GPUWorker) -> None:
        super().__init__("neighbours")
        self._gpu_worker = gpu_worker
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._rope, False)

    def wake(self) -> None:
        """Lets it ask again now."""
        with suppress(BlockingIOError):  # it has been rung often enough
            os.write(self._rope, b"!")

    def stop(self) -> None:
        """Ends the thread."""
        super().stop()
        self.wake()

    def turn(self) -> float:
        """Asks, buries, and sleeps until something may have changed."""
        living: list[int] = []
        try:
            self._look(living)
            return LOOK_EVERY if self._sleep(living) else 0.0
        finally:
            for pidfd in living:
                os.close(pidfd)

    def _look(self, living: list[int]) -> None:
        """Adds the descriptors of neighbours that live."""
        device = self._gpu_worker.device
        for gpu, presence in self._gpu_worker.ledger.neighbours(device.host):
            if gpu == device.id:
                continue
            if (pidfd := open_living(presence)) is not None:
                living.append(pidfd)
            elif is_certainly_dead(presence):  # asked second: what dies between the two questions is not missed
                self._bury(gpu, presence)

    def _sleep(self, living: list[int]) -> bool:
        """Did one of these end?"""
        poll = select.poll()
        for fd in (self._bell, *living):
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(self._gpu_worker.ledger.settings.heartbeat_interval * 1000)]
        if self._bell in ready:
            os.read(self._bell, select.PIPE_BUF)
        return ready not in ([], [self._bell])

    def _bury(self, gpu: str, dead: Presence) -> None:
        end_left_by(self._gpu_worker.ledger, gpu, dead)
        if self._gpu_worker.ledger.bury(gpu, dead.instance):
            words = "GPU %s had %s, which is dead: its task goes back or ends"
            logger.warning(words, gpu, describe(dead), extra=facts(gpu=gpu))
            self._gpu_worker.on_ending()
