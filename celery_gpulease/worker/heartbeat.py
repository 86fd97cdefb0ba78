"""The heartbeat: a thread of the worker's main process that keeps the lease of what runs, and settles what is over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from celery.utils.log import get_logger
from celery.worker import state as celery_state

from celery_gpulease.lease import board
from celery_gpulease.loops import Loop
from celery_gpulease.settings import RETRY_EVERY
from celery_gpulease.worker.gpu_worker import REJECTED
from celery_gpulease.worker.leftovers import Leftovers
from celery_gpulease.worker.measures import RENEWALS

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.worker.gpu_worker import Execution, GPUWorker

logger = get_logger(__name__)

#: Seconds between two looks at a process that is to be gone.
LOOK_EVERY: Final = 0.02
#: Seconds within which a process tells of the release that it has made.
RELEASE_TOLD_AFTER: Final = 1.0
#: Seconds after which what Celery has forgotten, and no process has begun, never will be.
DROPPED_AFTER: Final = 1.0
#: What becomes of a run that gave its GPU back without an end, by the ledger's answer.
BECOMES: Final = {
    "pending": "waits at its old place in the line",
    "scheduled": "waits a while, then goes back to its old place in the line",
    "claimed": "was given to the next free GPU at once",
    "ending": "does not run again: its end is written",
    "ended": "does not run again: it has ended",
    "stale": "nothing else changes: its claim was over before",
}


class Heartbeat(Loop):
    """Renews, reports and settles.

    Args:
        gpu_worker: What this worker answers for.
        on_taken: Called when another worker serves this GPU: this one must stop.

    Attributes:
        leftovers: What killed tasks have left behind.
    """

    def __init__(self, gpu_worker: GPUWorker, on_taken: Callable[[], None]) -> None:
        super().__init__("heartbeat")
        gpu_worker.wake_heartbeat = self.wake
        self._gpu_worker, self._on_taken = gpu_worker, on_taken
        self._settings = gpu_worker.ledger.settings
        self.leftovers = Leftovers(gpu_worker.ledger, gpu_worker.device.id)
        self._next_beat = self._regained_at = 0.0

    def beat_now(self) -> None:
        """The lease's key vanished: what runs takes it back at once, instead of at the next beat.

        Not so where it was taken back just now: a server that evicts leases would evict it again, and so on.
        """
        executions = self._gpu_worker.executions()
        if any(not one.is_over and not board.is_released(one.claim.fence) for one in executions):
            self._next_beat = min(self._next_beat, self._regained_at + RETRY_EVERY)
            self.wake()

    def turn(self) -> float:
        """Beats when it is time, then settles what is over: an end that fails must not keep it from beating."""
        if self._gpu_worker.count_children() or time.monotonic() >= self._next_beat:
            self._beat_and_plan()
        is_waiting = False
        for execution in self._gpu_worker.executions():
            if execution.is_over and self.leftovers.are_ended(execution) and self._gpu_worker.is_looked_at(execution):
                settle(self._gpu_worker, execution)
            else:
                self._end_if_untold(execution)
                is_waiting |= execution.is_over or self._is_dropped(execution)
        return LOOK_EVERY if is_waiting else max(0.0, self._next_beat - time.monotonic())

    def _beat_and_plan(self) -> None:
        self._next_beat = time.monotonic() + self._settings.heartbeat_interval  # `beat_now` may bring it forward
        try:
            self._beat()
        except BaseException:
            self._next_beat = time.monotonic() + RETRY_EVERY
            if self._gpu_worker.is_running():
                self._gpu_worker.tally.count(RENEWALS, self._gpu_worker.device.id, "unanswered")
            raise

    def _beat(self) -> None:
        gpu_worker, executions = self._gpu_worker, self._gpu_worker.executions()
        answer = self._beat_for(executions[0]) if len(executions) == 1 else "unusual"
        if answer == "unusual":
            answer = self._renew_and_report(executions)
        if answer == "unregistered":  # FLUSHDB
            gpu_worker.join_again()
        elif answer == "taken":
            self._on_taken()
        elif answer != "rerouted" and (answer == "closing") != gpu_worker.is_closed:
            gpu_worker.tell()  # Redis was away when it was told, or somebody changed it by hand
        if not executions:  # where something is left nothing is begun: so a busy GPU's heartbeat need not ask
            self.leftovers.look()

    def _beat_for(self, execution: Execution) -> str:
        asked_at = time.monotonic()  # before it is sent: what the server grants began no earlier
        answer = self._gpu_worker.ledger.beat(execution.claim, self._gpu_worker.presence)
        if answer != "unusual":
            self._gpu_worker.count_renewal("renewed", execution.claim.fence, asked_at)
            board.write_renewed(execution.claim.fence, asked_at)
        return answer

    def _renew_and_report(self, executions: list[Execution]) -> str:
        for execution in executions:
            self._renew(execution)
        # what is over, and whose process is not gone yet, still holds its GPU
        holding = min(executions, key=lambda execution: execution.is_over, default=None)
        running = holding.claim if holding else None
        gpu_worker, grace = self._gpu_worker, self._settings.lease_ttl / 2
        return gpu_worker.ledger.report(gpu_worker.device.id, gpu_worker.presence, running, grace)

    def _renew(self, execution: Execution) -> None:
        asked_at = time.monotonic()
        answer = self._gpu_worker.ledger.renew(execution.claim, is_lost=board.is_lost(execution.claim.fence))
        self._gpu_worker.count_renewal(answer, execution.claim.fence, asked_at)
        if answer in ("renewed", "regained"):
            board.write_renewed(execution.claim.fence, asked_at)
            if answer == "regained":
                self._regained_at = time.monotonic()
                words = "%s had lost the lease of GPU %s and took it back"
                logger.info(words, execution, execution.claim.gpu, extra=execution.facts)
        elif answer in ("robbed", "lost") and not execution.is_over:
            self._lose(execution, answer)
        elif answer == "ended":
            self._see_ended(execution)

    def _lose(self, execution: Execution, why: str) -> None:
        board.write_lost(execution.claim.fence)
        execution.request.lose(why)

    def _see_ended(self, execution: Execution) -> None:
        """Its ticket has ended: by its own RELEASE, of which its process tells a moment later, or without it."""
        execution.ended_since = execution.ended_since or time.monotonic()
        if execution.unknown_since is not None:  # it ran, and Celery has forgotten it
            self._gpu_worker.settled(execution)
        elif execution.is_over or board.is_released(execution.claim.fence):
            return
        elif time.monotonic() - execution.ended_since > RELEASE_TOLD_AFTER:
            self._lose(execution, "its task has ended without it")

    def _end_if_untold(self, execution: Execution) -> None:
        """Its process is done with it, and Celery's pool, which has forgotten it, cannot tell how it ended.

        It is given out again after a ttl, which asks for a stored end first.
        """
        if execution.is_over or not board.is_done(execution.claim.fence) or not execution.request.is_unknown_to_pool():
            return
        execution.done_since = execution.done_since or time.monotonic()
        if time.monotonic() - execution.done_since > self._settings.lease_ttl:
            words = "%s is over, and how it ended was not told: it goes back to its place"
            logger.warning(words, execution, extra=execution.facts)
            self._gpu_worker.end(execution.claim, "its end was not told")

    def _is_dropped(self, execution: Execution) -> bool:
        """Is this one of the requests that Celery drops when its connection is lost, not yet with the pool?

        It may be on its way to the child all the same: so it goes back only when no process has begun it after a while.
        """
        request = execution.request
        if request in celery_state.reserved_requests or request in celery_state.active_requests:
            execution.unknown_since = None
            return False
        if execution.unknown_since is None:
            execution.unknown_since = time.monotonic()
        fence = execution.claim.fence
        is_begun = board.is_begun(fence) or board.is_released(fence) or board.is_done(fence)
        if not is_begun and time.monotonic() - execution.unknown_since > DROPPED_AFTER:
            words = "%s was dropped by Celery before it ran, and goes back to its place"
            logger.info(words, execution, extra=execution.facts)
            board.write_given_up(fence)  # should a process begin it after all, it does not run
            self._gpu_worker.end(execution.claim, "dropped by Celery", counted=False)
        return not is_begun


def settle(gpu_worker: GPUWorker, execution: Execution) -> None:
    """Tells the ledger how a run has ended.

    Raises:
        LedgerUnavailable: Redis does not answer; the execution remains.
    """
    if execution.end is None:
        if not board.is_released(execution.claim.fence):
            gpu_worker.ledger.release(execution.claim)
            logger.info("%s is over: GPU %s is given back", execution, execution.claim.gpu, extra=execution.facts)
    else:
        if gpu_worker.is_cold:  # else the GPU that is given up would be claimed again at once
            gpu_worker.close()
        is_wanted = execution.end == REJECTED
        counted = execution.is_counted
        answer = gpu_worker.ledger.requeue(execution.claim, execution.end, counted=counted, wanted=is_wanted)
        words = "%s gives GPU %s back (%s), and %s"
        what = BECOMES.get(answer, answer)
        logger.info(words, execution, execution.claim.gpu, execution.end, what, extra=execution.facts)
        if answer == "ending":
            gpu_worker.on_ending()
    gpu_worker.settled(execution)
