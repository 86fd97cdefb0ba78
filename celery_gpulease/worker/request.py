"""What becomes of each request on a GPU's worker before the pool has it: START, or never."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from celery.utils.log import get_logger
from celery.worker import state as celery_state
from celery.worker.request import Request
from celery.worker.state import task_ready

from celery_gpulease.events import with_state
from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.lease import board
from celery_gpulease.model import AGAIN, HEADER, Claim, unique
from celery_gpulease.sending.stray import StrayRequest
from celery_gpulease.worker.pools import InMainPool
from celery_gpulease.worker.request_ends import EndingRequest

if TYPE_CHECKING:
    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

#: The part of a ttl for which a lease passes from task to task with the end that it has.
PASSED_ON_FOR: Final = 0.1


@cache
def gpu_request(base: type, gpu_worker: GPUWorker, pool: Any) -> type:
    """The request class of a task on a GPU's worker, over Celery's or the user's own (`Task.Request`)."""
    if issubclass(base, GPURequest):  # the consumer restarts, and asks again
        return base
    under = Request if issubclass(base, StrayRequest) else base
    return type("GPURequest", (GPURequest, under), {"gpu_worker": gpu_worker, "pool": pool})


class GPURequest(EndingRequest):
    """One request under a claim: START belongs to it, before the pool.

    Attributes:
        nonce: Of this request: START knows a repeated call by it.
    """

    nonce: str
    _is_started = False

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        header = self._request_dict.get(HEADER)
        self.claim, self.nonce = Claim.from_header(header), unique()
        if self.claim is not None:
            self._request_dict["eta"] = header.get("eta")  # the ledger has waited; the task still sees it
        else:
            self._eta = None  # the ledger will wait, not this process, which alone has the message

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
