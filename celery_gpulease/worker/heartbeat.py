"""The heartbeat: a thread of the worker's main process that keeps the lease of what runs, and settles what is over."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from celery.utils.log import get_logger
from celery.worker import state as celery_state

from celery_gpulease.lease import board
from celery_gpulease.loops import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.worker.post import Duty, Post

logger = get_logger(__name__)

#: Seconds between two looks at a process that is to be gone.
LOOK_EVERY: Final = 0.02
#: Seconds after which what Celery has forgotten, and no process has begun, never will be.
DROPPED_AFTER: Final = 1.0


class Heartbeat(Loop):
    """Renews, reports and settles.

    Args:
        post: What this worker answers for.
        on_taken: Called when another worker serves this GPU: this one must stop.
    """

    def __init__(self, post: Post, on_taken: Callable[[], None]) -> None:
        super().__init__("heartbeat")
        post.wake_heartbeat = self.wake
        self._post, self._on_taken = post, on_taken
        self._settings = post.ledger.settings
        self._next_beat = 0.0

    def beat_now(self) -> None:
        """The lease's key vanished: what runs takes it back at once, instead of at the next beat."""
        if any(not duty.is_over and not board.is_released(duty.claim.fence) for duty in self._post.duties()):
            self._next_beat = 0.0
            self.wake()

    def turn(self) -> float:
        """Settles what is over, and beats when it is time."""
        is_waiting = False
        for duty in self._post.duties():
            if duty.is_over and not (duty.pid is not None and is_alive(duty.pid)):
                settle(self._post, duty)
            else:
                is_waiting |= duty.is_over or self._is_dropped(duty)
        if time.monotonic() >= self._next_beat:
            self._beat_and_plan()
        return LOOK_EVERY if is_waiting else max(0.0, self._next_beat - time.monotonic())

    def _beat_and_plan(self) -> None:
        self._next_beat = time.monotonic() + self._settings.heartbeat_interval  # `beat_now` may bring it forward
        try:
            self._beat()
        except BaseException:
            self._next_beat = 0.0
            raise

    def _beat(self) -> None:
        duties = self._post.duties()
        for duty in duties:
            self._renew(duty)
        running = next((duty.claim for duty in duties if not duty.is_over), None)
        post, ledger = self._post, self._post.ledger
        answer = ledger.report(post.device.id, post.presence, running, self._settings.lease_ttl / 2)
        if answer == "unregistered":
            ledger.join(post.device, post.pools, post.presence)
        elif answer == "taken":
            self._on_taken()

    def _renew(self, duty: Duty) -> None:
        asked_at = time.monotonic()  # before it is sent: what the server grants began no earlier
        answer = self._post.ledger.renew(duty.claim)
        if answer in ("renewed", "regained"):
            board.write(renewed_fence=duty.claim.fence, renewed_at=asked_at)
            if answer == "regained":
                logger.warning("%s had lost the lease of GPU %s and took it back", duty.request, duty.claim.gpu)
        elif answer in ("robbed", "lost") and not duty.is_over:
            board.write(lost_fence=duty.claim.fence)
            duty.request.lose(answer)
        elif answer == "ended" and duty.unknown_since is not None:  # it ran, and Celery has forgotten it
            self._post.settled(duty)

    def _is_dropped(self, duty: Duty) -> bool:
        """Is this one of the requests that Celery drops when its connection is lost, not yet with the pool?

        It may be on its way to the child all the same: so it goes back only when no process has begun it after a while.
        """
        request = duty.request
        if request in celery_state.reserved_requests or request in celery_state.active_requests:
            duty.unknown_since = None
            return False
        if duty.unknown_since is None:
            duty.unknown_since = time.monotonic()
        is_begun = board.is_begun(duty.claim.fence) or board.is_released(duty.claim.fence)
        if not is_begun and time.monotonic() - duty.unknown_since > DROPPED_AFTER:
            logger.warning("%s was dropped by Celery before it ran, and goes back to its place", request)
            board.write(lost_fence=duty.claim.fence)  # should a process begin it after all, it does not run
            self._post.end(duty.claim, "dropped by Celery", counted=False)
        return not is_begun


def settle(post: Post, duty: Duty) -> None:
    """Tells the ledger how a run has ended.

    Raises:
        LedgerUnavailable: Redis does not answer; the duty remains.
    """
    if duty.end is None:
        if not board.is_released(duty.claim.fence):
            post.ledger.release(duty.claim)
    else:
        post.ledger.requeue(duty.claim, duty.end, counted=duty.is_counted)
    post.settled(duty)


def is_alive(pid: int) -> bool:
    """Does this process still run? One that only waits to be reaped does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # no /proc here
        return True
    return state not in "ZX"
