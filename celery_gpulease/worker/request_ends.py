"""How a request on a GPU's worker ends: the ends that signals cannot see, and the ways in which somebody ends it."""

from __future__ import annotations

import os
import re
import signal
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, QueueNotFound, Reject
from celery.utils.log import get_logger
from celery.worker.request import Request
from celery.worker.state import task_ready
from kombu.exceptions import SerializationError, SerializerNotInstalled
from kombu.utils.encoding import safe_repr

from celery_gpulease.facts import facts
from celery_gpulease.model import HEADER
from celery_gpulease.sending.maps import gpu_task_of
from celery_gpulease.worker.gpu_worker import REJECTED
from celery_gpulease.worker.pools import InMainPool

if TYPE_CHECKING:
    from celery_gpulease.model import Claim
    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

#: Ends of the process that ran the task, not of the task; a MemoryError where it could not even be stored.
DEATHS: Final = (WorkerLostError, SystemExit, KeyboardInterrupt, MemoryError)
#: Ends in which the process is killed, or dies.
KILLS: Final = (Terminated, TimeLimitExceeded, WorkerLostError, SystemExit, KeyboardInterrupt)
#: What billiard (`mark_as_worker_lost` in its pool.py) and Celery (celery/worker/request.py) say of a death.
GONE: Final = re.compile(r"Worker exited prematurely: (.+?)\.?(?: Job: \d+\.)?")
#: Of a callback whose message or destination is wrong: no repetition sends it.
UNSENDABLE: Final = (SerializationError, SerializerNotInstalled, QueueNotFound)
#: Celery 5.6 and newer would tell of a retry.
NO_RETRY_EVENT: Final = {"emit_retry": False} if "emit_retry" in signature(Request.cancel).parameters else {}


class EndingRequest(Request):
    """A request that is over when its process is done with it, and whose ticket the ledger then ends or requeues.

    Attributes:
        gpu_worker: What this worker answers for.
        pool: Celery's pool.
        claim: What the message says of its claim; None where it came past the ledger.
    """

    gpu_worker: GPUWorker
    pool: Any
    claim: Claim | None
    _is_rejected = False
    _is_terminated = False
    _lost_why: str | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Wraps the `on_success` that Celery's `create_request_cls` (celery/worker/request.py) puts over ours."""
        super().__init_subclass__(**options)
        if "on_success" in vars(cls):
            cls.on_success = _then_end(cls.on_success)

    def __str__(self) -> str:
        """As in Celery's own lines; its `str` goes on with when it expires."""
        return str(self.humaninfo())

    @property
    def facts(self) -> dict[str, str]:
        """What its lines of the log say to programs."""
        if self.claim is None:
            return facts(task_id=self.id, gpu=self.gpu_worker.device.id)
        pool = self._request_dict[HEADER].get("pool") or ""
        return facts(task_id=self.id, gpu=self.claim.gpu, pool=pool, token=self.claim.token)

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
            logger.error("%s: its process died under it: %s", self, _how(error), extra=self.facts)
            self._end_unstored(error, f"its process died: {_how(error)}")
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


def _how(error: BaseException) -> str:
    """How a process died, without the pool's number of its job."""
    told = GONE.fullmatch(str(error))
    return told[1] if told else str(error) or repr(error)


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
