"""What becomes of each request on a GPU's worker: START before the pool, and every end that signals cannot see."""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, QueueNotFound, Reject
from celery.utils.log import get_logger
from celery.worker import state as celery_state
from celery.worker.request import Request
from celery.worker.state import task_ready
from kombu.exceptions import SerializationError, SerializerNotInstalled
from kombu.utils.encoding import safe_repr

from celery_gpulease.events import with_state
from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.facts import facts
from celery_gpulease.lease import board
from celery_gpulease.model import AGAIN, HEADER, Claim, unique
from celery_gpulease.sending.maps import gpu_task_of
from celery_gpulease.sending.stray import StrayRequest
from celery_gpulease.worker.gpu_worker import REJECTED
from celery_gpulease.worker.pools import InMainPool

if TYPE_CHECKING:
    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

#: Ends of the process that ran the task, not of the task; a MemoryError where it could not even be stored.
DEATHS: Final = (WorkerLostError, SystemExit, KeyboardInterrupt, MemoryError)
#: Ends in which the process is killed, or dies.
KILLS: Final = (Terminated, TimeLimitExceeded, WorkerLostError, SystemExit, KeyboardInterrupt)
#: Of a callback whose message or destination is wrong: no repetition sends it.
UNSENDABLE: Final = (SerializationError, SerializerNotInstalled, QueueNotFound)
#: The part of a ttl for which a lease passes from task to task with the end that it has.
PASSED_ON_FOR: Final = 0.1
#: Celery 5.6 and newer would tell of a retry.
NO_RETRY_EVENT: Final = {"emit_retry": False} if "emit_retry" in signature(Request.cancel).parameters else {}


@cache
def gpu_request(base: type, gpu_worker: GPUWorker, pool: Any) -> type:
    """The request class of a task on a GPU's worker, over Celery's or the user's own (`Task.Request`)."""
    if issubclass(base, GPURequest):  # the consumer restarts, and asks again
        return base
    under = Request if issubclass(base, StrayRequest) else base
    return type("GPURequest", (GPURequest, under), {"gpu_worker": gpu_worker, "pool": pool})


class GPURequest(Request):
    """One request under a claim.

    Attributes:
        gpu_worker: What this worker answers for.
        pool: Celery's pool.
        claim: What the message says of its claim; None where it came past the ledger.
        nonce: Of this request: START knows a repeated call by it.
    """

    gpu_worker: GPUWorker
    pool: Any
    claim: Claim | None
    nonce: str
    _is_started = False
    _is_rejected = False
    _is_terminated = False
    _lost_why: str | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Wraps the `on_success` that Celery's `create_request_cls` (celery/worker/request.py) puts over ours."""
        super().__init_subclass__(**options)
        if "on_success" in vars(cls):
            cls.on_success = _then_end(cls.on_success)

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        header = self._request_dict.get(HEADER)
        self.claim, self.nonce = Claim.from_header(header), unique()
        if self.claim is not None:
            self._request_dict["eta"] = header.get("eta")  # the ledger has waited; the task still sees it
        else:
            self._eta = None  # the ledger will wait, not this process, which alone has the message

    @property
    def facts(self) -> dict[str, str]:
        """What its lines of the log say to programs."""
        if self.claim is None:
            return facts(task_id=self.id, gpu=self.gpu_worker.device.id)
        pool = self._request_dict[HEADER].get("pool") or ""
        return facts(task_id=self.id, gpu=self.claim.gpu, pool=pool, token=self.claim.token)

    # before it runs

    def revoked(self) -> bool:
        """Celery asks this before it revokes, expires or runs a request: so this is where START belongs.

        A message whose claim is over is dropped in silence: its task runs, or waits, elsewhere.
        """
        if self._already_revoked:
            return True
        if not self._is_started and not self._start():
            task_ready(self)
            return True
        if super().revoked():
            self._end()
            return True
        return False

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """The pool's process has it."""
        super().on_accepted(pid, time_accepted)
        self.gpu_worker.runs_in(pid)
        if self._lost_why:
            self._stop()

    def _start(self) -> bool:
        try:
            if self.claim is None:  # it came past the ledger
                self.gpu_worker.on_stray(self)
                return False
            if self.claim.gpu != self.gpu_worker.device.id:  # it is routed once more, to where it belongs
                logger.warning("%s is dropped: somebody put it here, its claim is for GPU %s", self, self.claim.gpu)
                return False
            if celery_state.should_stop is not None or celery_state.should_terminate is not None:
                return False  # the claim goes back when the worker closes
            if seconds := self.gpu_worker.rate_limits.seconds_until(self.task, self.claim.ticket):
                self.gpu_worker.ledger.defer(self.claim, seconds)
                return False
            self._is_started = self._ask_to_start(self.claim)
        except LedgerUnavailable as error:
            self._give_up_start(error)
        return self._is_started

    def _ask_to_start(self, claim: Claim) -> bool:
        self._write_renewed(claim)
        answer = self.gpu_worker.ledger.start(
            claim,
            self.nonce,
            self.gpu_worker.presence.instance,
            acks_late=self._acks_late(),
            limit=self.gpu_worker.ledger.settings.max_deliveries,
            stores_result=not self.ignore_result,
        )
        if answer == "again":  # its process asks the result backend, which may be slow, before it runs the task
            self._request_dict[HEADER] = {
                **self._request_dict[HEADER],
                AGAIN: self.gpu_worker.ledger.first_run_ms(claim),
            }
        if answer in ("run", "rerun", "again"):
            self.delivery_info["redelivered"] = answer != "run"
            self.gpu_worker.begin(claim, self)
            logger.info("%s starts on GPU %s (delivery %d)", self, claim.gpu, claim.delivery, extra=self.facts)
            self._tell_of_claim(claim)
            self._say_ignored_limits()
            return True
        logger.info("%s is dropped: its claim is over (%s)", self, answer, extra=self.facts)
        return False

    def _write_renewed(self, claim: Claim) -> None:
        """Before START is sent: what it grants began no earlier, or so much (`pass_lease` in ledger/lua)."""
        early = self.gpu_worker.ledger.settings.lease_ttl * PASSED_ON_FOR
        board.write_renewed(claim.fence, time.monotonic() - early)

    def _tell_of_claim(self, claim: Claim) -> None:
        try:
            self.gpu_worker.tell_monitors(self.eventer)
        except Exception as error:  # noqa: BLE001  # Celery's loop would end the worker, for a hint
            logger.warning("Monitors are not told now what was requeued: %s", error)
        self.send_event("task-claimed", gpu=claim.gpu, fence=claim.fence, delivery=claim.delivery)

    def _say_ignored_limits(self) -> None:
        has_limits = any(self.time_limits) or self.task.time_limit or self.task.soft_time_limit
        if has_limits and isinstance(self.pool, InMainPool) and self.name not in self.gpu_worker.said_unlimited:
            self.gpu_worker.said_unlimited.add(self.name)
            logger.warning("This pool cannot limit a task's time: %s runs for as long as it takes", self.name)

    def _give_up_start(self, error: LedgerUnavailable) -> None:
        """The reply may be lost, and the script have run: then the ticket is started, and must go back as it came."""
        logger.warning("%s does not start now: %s", self, error)
        if self.claim is not None:
            self.gpu_worker.begin(self.claim, self)
            self._end("START was not answered", counted=False)

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002
        """Sends one of Celery's events, or ours."""
        super().send_event(type, **with_state(type, fields))

    # when it is over

    def end_well(self) -> None:
        """The task has succeeded."""
        self._end()

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        """Every end but success. A death is not the task's end, and a lost run has none."""
        error = _error_of(exc_info)
        if isinstance(error, Terminated) and not (self._is_terminated or self._already_cancelled or self._lost_why):
            exc_info = _as_death(error)
            error = _error_of(exc_info)
        if self._lost_why and isinstance(error, KILLS):
            self._end_unstored(error, self._lost_why)
        elif isinstance(error, MemoryError) and return_ok:  # Celery would end the worker (`Request.on_failure`)
            self._end_as_stored(error, exc_info, send_failed_event)
        elif self._already_cancelled or (self.gpu_worker.is_cold and self._has_died(error)):
            # by a cold shutdown: no death, but what may run once only has had its run
            self._end_unstored(error, "shutdown", counted=not self._acks_late())
        elif isinstance(error, Reject) and isinstance(error.reason, Ignore):  # Task.retry, refused by HOLD
            self._end_unstored(error)
        elif self._has_died(error):
            logger.error("%s: its process died under it: %s", self, error, extra=self.facts)
            self._end_unstored(error, f"its process died: {error}")
        else:
            self._end_as_celery(error, exc_info, send_failed_event, return_ok)

    def _end_as_celery(self, error: BaseException, *how: Any) -> None:
        try:
            super().on_failure(*how)
        except BaseException as failure:  # of the result backend, or of a callback: the next run repeats it
            is_repeated = self.store_errors and not isinstance(failure, UNSENDABLE)
            self._end_after(error, "its end could not be stored" if is_repeated else None)
            raise
        if self._is_rejected:
            self._end_after(error, REJECTED, counted=False)
        else:
            self._end_after(error)

    def _end_as_stored(self, error: BaseException, exc_info: Any, send_failed_event: bool) -> None:  # noqa: FBT001
        """The process that ran it has stored its failure, called its errbacks, and lives."""
        task_ready(self)
        if send_failed_event:
            self.send_event("task-failed", exception=safe_repr(error), traceback=exc_info.traceback)
        self._end_after(error)

    def _end_unstored(self, error: BaseException, why: str | None = None, *, counted: bool = True) -> None:
        task_ready(self)
        self._end_after(error, why, counted=counted)

    def _end_after(self, error: BaseException, why: str | None = None, *, counted: bool = True) -> None:
        """Celery may tell of an end before the process that it kills is gone: the GPU is free only then."""
        is_child = self.worker_pid not in (None, os.getpid())
        self._end(why, counted=counted, pid=self.worker_pid if is_child and isinstance(error, KILLS) else None)

    def acknowledge(self) -> None:
        """Nothing: the broker keeps no copy, the ledger alone remembers."""

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """The task asked for it, so it counts as no death."""
        self._is_rejected = requeue  # `on_failure`, which calls this, ends it
        self.send_event("task-rejected", requeue=requeue)

    def cancel(self, pool: Any, signal: Any = None, **_: Any) -> None:
        """Only a cold shutdown ends a run, and that is no retry; a lost connection to the broker loses nothing here."""
        if self.gpu_worker.is_cold and self._can_be_stopped():
            super().cancel(pool, signal, **NO_RETRY_EVENT)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """`revoke(terminate=True)`; remembered, since Celery takes any later death of this child for it."""
        if self._can_be_stopped():
            self._is_terminated = True
            super().terminate(pool, signal)

    def lose(self, why: str) -> None:
        """The heartbeat's word: another holder has the GPU. What runs here is stopped, where it can be."""
        if self._lost_why:
            return
        self._lost_why = why
        logger.error("%s has lost the lease of GPU %s (%s)", self, self.gpu_worker.device.id, why, extra=self.facts)
        if self.time_start:
            self._stop()

    def is_unknown_to_pool(self) -> bool:
        """Has Celery's pool no such job any more? Then it will not tell how it ends.

        When its connection is lost it drops a job of which it has not read yet that a process has begun it (`flush` in
        celery/concurrency/asynpool.py).
        """
        job = getattr(self, "_apply_result", None)
        return job is not None and job() is None and not isinstance(self.pool, InMainPool)

    def _stop(self) -> None:
        if self.gpu_worker.ledger.settings.on_lease_lost != "terminate":
            return
        if self._can_be_stopped():
            self.pool.terminate_job(self.worker_pid, signal.SIGTERM)

    def _can_be_stopped(self) -> bool:
        if not isinstance(self.pool, InMainPool):
            return True
        logger.error("This pool cannot stop a task: %s runs on, to its own end", self)
        return False

    def _has_died(self, error: BaseException) -> bool:
        """Is it a death for us: none that Celery dealt for an end of its own, or that the task asks Celery to retry?"""
        is_retried = getattr(self.task, "retry_on_worker_lost", False)  # from Celery 5.7
        is_celerys = self._already_revoked or is_retried
        return isinstance(error, MemoryError) or (isinstance(error, DEATHS) and not is_celerys)

    def _acks_late(self) -> bool:
        """May its task run again? For a map its calls' task decides."""
        return bool((gpu_task_of(self) or self.task).acks_late)

    def _end(self, why: str | None = None, *, counted: bool = True, pid: int | None = None) -> None:
        if self.claim is not None:
            self.gpu_worker.end(self.claim, why, counted=counted, pid=pid)


def _error_of(exc_info: ExceptionInfo) -> BaseException:
    error: BaseException = exc_info.exception
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def _as_death(error: BaseException) -> ExceptionInfo:
    """A child that survived an earlier task's `revoke(terminate=True, signal="SIGUSR1")` has died under this one.

    The pool marks the child as terminated, not the job (`terminate_job` in billiard/pool.py).
    """
    try:
        raise WorkerLostError(str(error))  # noqa: TRY301
    except WorkerLostError:
        return ExceptionInfo()


def _then_end(on_success: Any) -> Any:
    def on_success_then_end(self: Any, result: Any, **options: Any) -> Any:
        if isinstance(result, ExceptionInfo):  # from an InMainPool: nothing has been stored
            return self.on_failure(result)
        try:
            return on_success(self, result, **options)
        finally:
            if not result[0]:  # else on_failure has seen it
                self.end_well()

    return on_success_then_end
