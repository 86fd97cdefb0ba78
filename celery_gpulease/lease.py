"""What a running task holds: `self.gpu` and `self.lease`."""

from __future__ import annotations

import mmap
import struct
import time
from typing import TYPE_CHECKING, Any, Final

from celery.utils.log import get_logger

from celery_gpulease.exceptions import LeaseLost, LedgerUnavailable
from celery_gpulease.facts import facts
from celery_gpulease.model import GPU

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.model import Claim

logger = get_logger(__name__)

NO_GPU: Final = GPU(None, None)


class Board:
    """One page that the worker's main process and its pool's children share.

    The heartbeat writes what it knows of the run's lease, the child that it has begun a run or released its lease. It
    is made before the fork, so every child sees it. Times are CLOCK_MONOTONIC, which is one for all processes.
    """

    _RENEWED: Final = struct.Struct("qd")
    _FENCE: Final = struct.Struct("q")
    _LOST_AT: Final = 16
    _GIVEN_UP_AT: Final = 24
    _CHILD: Final = struct.Struct("qqq")
    _CHILD_AT: Final = 32
    _SIZE: Final = 64

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, self._SIZE)

    def write_renewed(self, fence: int, at: float) -> None:
        """The heartbeat, or START before it, has renewed this run's lease."""
        self._RENEWED.pack_into(self._page, 0, fence, at)

    def renewed_at(self, fence: int) -> float:
        """When this run's lease was last renewed, 0 for never."""
        renewed_fence, at = self._RENEWED.unpack_from(self._page)
        return float(at) if renewed_fence == fence else 0.0

    def write_lost(self, fence: int) -> None:
        """This run has lost its lease; fences grow, so those before it have too."""
        self._raise_to(self._LOST_AT, fence)

    def is_lost(self, fence: int) -> bool:
        """Did main see this run's lease go?"""
        return fence <= self._fence_at(self._LOST_AT)

    def write_given_up(self, fence: int) -> None:
        """Main puts this run's ticket back before any process has begun it; so it did with those before."""
        self._raise_to(self._GIVEN_UP_AT, fence)

    def is_given_up(self, fence: int) -> bool:
        """Has main given this run up? Then it must not begin, and its ticket is main's."""
        return fence <= self._fence_at(self._GIVEN_UP_AT)

    def _raise_to(self, at: int, fence: int) -> None:
        self._FENCE.pack_into(self._page, at, max(fence, self._fence_at(at)))

    def _fence_at(self, at: int) -> int:
        return int(self._FENCE.unpack_from(self._page, at)[0])

    def write_child(self, *, begun_fence: int = 0, released_fence: int = 0, done_fence: int = 0) -> None:
        """The run's own process has begun it, released its lease, or is done with it and leaves the rest to main."""
        self._CHILD.pack_into(self._page, self._CHILD_AT, begun_fence, released_fence, done_fence)

    def is_begun(self, fence: int) -> bool:
        """Does a process run this now?"""
        return self._child(0) == fence

    def is_released(self, fence: int) -> bool:
        """Did the run's own process release its lease?"""
        return self._child(1) == fence

    def is_done(self, fence: int) -> bool:
        """Is the run's own process done with it, and its lease held until main says how it ended?"""
        return self._child(2) == fence

    def _child(self, field: int) -> int:
        return int(self._CHILD.unpack_from(self._page, self._CHILD_AT)[field])


#: Of this process, and of those that it forks.
board: Final = Board()


class Lease:
    """The lease of one run; without a claim (eager, or called as a function) it does nothing."""

    def __init__(self, ledger: Ledger | None = None, claim: Claim | None = None) -> None:
        self._ledger, self.claim = ledger, claim
        self.began = self._asked_at = time.monotonic()
        self._is_given_back = self._is_lost = False

    def is_of(self, ledger: Ledger) -> bool:
        """Is it held in this ledger? A process may have apps with ledgers of their own."""
        return self._ledger is ledger

    @property
    def fence(self) -> int | None:
        """Grows with every claim of this GPU; None without a lease."""
        return self.claim.fence if self.claim else None

    @property
    def lost(self) -> bool:
        """Did the lease go to somebody else? Never raises, and False where Redis cannot be asked.

        The worker's heartbeat knows; Redis itself is asked, now and then, only where that is silent for a ttl.
        """
        if self._ledger is None or self.claim is None or self._is_given_back or self._is_lost:
            return self._is_lost
        settings = self._ledger.settings
        now = time.monotonic()
        if board.is_lost(self.claim.fence):
            self._is_lost = True
        elif now - max(board.renewed_at(self.claim.fence), self._asked_at) >= settings.lease_ttl:
            self._asked_at = now - settings.lease_ttl + settings.heartbeat_interval
            self._is_lost = self._ask(self._ledger.is_lost)
        return self._is_lost

    def check(self) -> None:
        """Raises LeaseLost once the lease is lost: call it at checkpoints."""
        if self.lost and self.claim:
            message = f"the lease of GPU {self.claim.gpu} (fence {self.claim.fence}) went to another holder"
            raise LeaseLost(message)

    def release(self) -> None:
        """Gives the GPU back early: other programs may take it at once. Safe to repeat.

        Raises:
            LedgerUnavailable: Redis does not answer; the lease is still held.
        """
        if self._ledger is None or self.claim is None or self._is_given_back:
            return
        self._ledger.give_back(self.claim)
        self._is_given_back = True
        if _current is not None and _current.lease is self:
            words = "%s gave GPU %s back early, and runs on"
            logger.info(words, _current.task_id, self.claim.gpu, extra=_current.facts)

    def may_have_lapsed(self) -> bool:
        """Has it been held for so long, or not been renewed for so long, that it may have lapsed meanwhile?

        A process may begin a run long after its START: both were stopped in between, or the machine slept.
        """
        if self._ledger is None or self.claim is None:
            return False
        known_at = min(self.began, board.renewed_at(self.claim.fence))
        return time.monotonic() - known_at > self._ledger.settings.lease_ttl

    def is_elsewhere(self) -> bool:
        """Asks Redis whether this run's task has started elsewhere; False where it does not answer."""
        return self._ledger is not None and self._ask(self._ledger.is_elsewhere)

    def _ask(self, question: Callable[[Claim], bool]) -> bool:
        try:
            return self.claim is not None and question(self.claim)
        except LedgerUnavailable:
            return False


class Run:
    """The run of a task in this process: one at a time, since a GPU does one at a time.

    Attributes:
        stored: The end that an earlier run has stored already.
        called: The name of the task that it calls as a function, where it is that of a map.
        pool: Of which it was held.
        is_guarded: The task's `__call__` has begun.
    """

    def __init__(
        self,
        task_id: str,
        gpu: GPU,
        lease: Lease,
        stored: dict[str, Any] | None = None,
        called: str | None = None,
        pool: str = "",
    ) -> None:
        self.task_id, self.gpu, self.lease, self.stored, self.called = task_id, gpu, lease, stored, called
        self.pool, self.is_guarded = pool, False

    @property
    def claim(self) -> Claim | None:
        """What it runs under."""
        return self.lease.claim

    @property
    def facts(self) -> dict[str, str]:
        """What its lines of the log say to programs."""
        gpu, token = (self.claim.gpu, self.claim.token) if self.claim else ("", "")
        return facts(task_id=self.task_id, gpu=gpu, pool=self.pool, token=token)

    def must_not_begin(self) -> bool:
        """Does its task run, or wait, elsewhere already? That of a robbed run does not: this one is its only one."""
        if self.claim is None:
            return False
        return board.is_given_up(self.claim.fence) or self.must_be_dropped()

    def must_be_dropped(self) -> bool:
        """Does this run's task run, or end, elsewhere? Asked once it is over and before anything is stored.

        A run shorter than the ttl cannot have lost its lease, except by order, which the heartbeat tells. A run that
        was robbed of its GPU and could not be stopped is still its task's only one: its end counts.
        """
        is_told = self.claim is not None and board.is_lost(self.claim.fence)
        return (is_told or self.lease.may_have_lapsed()) and self.lease.is_elsewhere()


_NO_LEASE: Final = Lease()
_current: Run | None = None


def begin(run: Run) -> None:
    """This process runs a task now."""
    global _current  # noqa: PLW0603
    _current = run


def end() -> Run | None:
    """The task is over; what ran, or None."""
    global _current
    run, _current = _current, None
    return run


def current(task_id: str | None, ledger: Ledger | None = None) -> Run | None:
    """The run of this task id, when this process runs it; under a lease of this ledger, where one is named."""
    if _current is None or _current.task_id != task_id:
        return None
    return _current if ledger is None or _current.lease.is_of(ledger) else None


def calling(name: str) -> Run | None:
    """The run of a map that calls this task, when this process runs it."""
    return _current if _current is not None and _current.called == name else None


def no_lease() -> Lease:
    """The lease of a task that runs without one."""
    return _NO_LEASE
