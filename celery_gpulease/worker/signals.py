"""What the process that runs a task does at its start and end. Handlers observe or release, they never decide."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from celery import signals
from celery.utils.log import get_logger

from celery_gpulease import lease
from celery_gpulease.ends import stored_end
from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.lease import Lease, Run
from celery_gpulease.model import AGAIN, GPU, HEADER, Claim
from celery_gpulease.sending.maps import called_by
from celery_gpulease.worker import gpu_worker as gpu_workers
from celery_gpulease.worker.leftovers import lead_group, mark

logger = get_logger(__name__)

#: States by which the task itself has ended. Without a state (killed, shut down) or rejected, main decides.
OWN_ENDS: Final = frozenset({"SUCCESS", "FAILURE", "RETRY", "IGNORED"})


def connect() -> None:
    """Connects the handlers, in a worker of a GPU before its pool forks."""
    signals.task_prerun.connect(_task_prerun, dispatch_uid="gpulease")
    signals.task_postrun.connect(_task_postrun, dispatch_uid="gpulease")
    signals.worker_process_init.connect(_worker_process_init, dispatch_uid="gpulease")


def disconnect() -> None:
    """Undoes that, where the process goes on without a worker: a test's."""
    for signal in (signals.task_prerun, signals.task_postrun, signals.worker_process_init):
        signal.disconnect(dispatch_uid="gpulease")
    signals.task_prerun.disconnect(dispatch_uid="gpulease-held")


def _worker_process_init(**_: Any) -> None:
    """A child of the pool has begun; in solo, which has none, nothing has."""
    if gpu_workers.current is not None and os.getpid() != gpu_workers.current.presence.pid:
        lead_group()


def _task_prerun(task_id: str, task: Any, args: Any, kwargs: Any, **_: Any) -> None:
    header = getattr(task.request, HEADER, None) or {}
    claim = Claim.from_header(header)
    if gpu_workers.current is None or claim is None or task.request.is_eager:
        return
    lease.board.write_child(begun_fence=claim.fence)
    mark(claim.token)
    device = gpu_workers.current.device
    stored = _stored_end(task, task_id, header[AGAIN]) if AGAIN in header else None  # before Celery marks it as started
    held, called = Lease(gpu_workers.current.ledger, claim), called_by(task.name, args, kwargs)
    lease.begin(Run(task_id, GPU(device.id, device.index), held, stored, called, header.get("pool") or ""))


def _stored_end(task: Any, task_id: str, since_ms: int) -> dict[str, Any] | None:
    try:
        return stored_end(task.backend, task_id, since_ms)
    except Exception:
        logger.exception("%s[%s] runs again: the result backend does not say whether it has ended", task.name, task_id)
        return None


def _task_postrun(task_id: str, task: Any, state: str | None = None, **_: Any) -> None:
    run = lease.current(task_id)
    if gpu_workers.current is None or run is None or run.claim is None:
        return
    lease.end()
    # else Celery's tracer, which calls this on its way out, could not store it: main may, and must not find it ended
    is_stored = sys.exc_info()[0] is None
    mark(None)
    lease.board.write_child(done_fence=run.claim.fence)
    if state not in OWN_ENDS or not is_stored or lease.board.is_given_up(run.claim.fence):
        return
    try:
        gpu_workers.current.ledger.release(run.claim)
    except LedgerUnavailable as error:
        logger.warning("The lease of GPU %s is released later, by the main process: %s", run.claim.gpu, error)
    else:
        lease.board.write_child(released_fence=run.claim.fence)
        logger.info("%s[%s] is over: GPU %s is given back", task.name, task_id, run.claim.gpu, extra=run.facts)
