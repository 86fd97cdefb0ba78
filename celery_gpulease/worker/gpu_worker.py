"""What one worker knows of its GPU, and of what it runs there."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.facts import facts
from celery_gpulease.lease import board
from celery_gpulease.model import Presence, unique
from celery_gpulease.tally import Tally
from celery_gpulease.version import __version__
from celery_gpulease.worker.measures import RENEWALS, TTL_LEFT, WAKEUPS
from celery_gpulease.worker.processes import is_gone, realm, started_at
from celery_gpulease.worker.rates import RateLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.model import Claim, Device
    from celery_gpulease.worker.companion import Companion


#: The task asked to run once more.
REJECTED: Final = "rejected"

#: Why a worker takes no work.
STOPS: Final = "it stops"
CANCELLED: Final = "its consumer was cancelled"
BROKER_LOST: Final = "it has lost the broker"


@dataclass
class Execution:
    """A run that this worker answers for, from START until its ticket is ended or given back.

    Attributes:
        claim: What it runs under.
        request: Celery's request; or the message, of which Celery could make none.
        end: How it is to be given up once it is over: a word for the journal, or None for a plain release.
        is_over: Main knows that it is over.
        is_counted: Does giving it up count as a delivery?
        pid: The process that must be gone first, None for none.
        unknown_since: Since when neither Celery's pool nor its main process knows the request.
        ended_since: Since when its ticket has ended.
        gone_since: Since when that process is gone, and what it has left behind is ended.
        done_since: Since when its process is done with it, and Celery has forgotten it.
        look: Which look at the device is the first after its process was gone.
    """

    claim: Claim
    request: Any
    end: str | None = None
    is_over: bool = False
    is_counted: bool = True
    pid: int | None = None
    unknown_since: float | None = None
    ended_since: float | None = None
    gone_since: float | None = None
    done_since: float | None = None
    look: int | None = None

    def __str__(self) -> str:
        """Names it in the log; a message has no task id that could be relied on, and shows all that is in it."""
        told = getattr(self.request, "humaninfo", None)
        return str(told()) if told else f"The message of ticket {self.claim.ticket}"

    @property
    def facts(self) -> dict[str, str]:
        """What its lines of the log say to programs; a message has no task id that could be relied on."""
        return getattr(self.request, "facts", None) or facts(gpu=self.claim.gpu, token=self.claim.token)


class GPUWorker:
    """One worker's GPU, pools and presence, and the executions that it has now.

    There is one execution at a time but for a moment: the next task may start while the end of the last is settled.
    The event loop begins and ends executions, the heartbeat's thread settles them with the ledger.
    """

    def __init__(self, ledger: Ledger, device: Device, pools: tuple[str, ...], worker: str) -> None:
        self.ledger, self.device, self.pools = ledger, device, pools
        main = os.getpid()
        self.presence = Presence(unique(), worker, device.host, main, __version__, realm(), started_at(main))
        self.child_pids: Callable[[], Iterable[int]] = tuple  # there are none before the fork
        self._closed_for: set[str] = set()
        self._telling = Lock()
        self.on_open: Callable[[], None] = lambda: None  # there is no listener before the worker consumes
        self.is_cold = False  # the worker stops, and ends what it runs
        self.on_cold: Callable[[], None] = lambda: None
        self.rate_limits = RateLimits()
        self.tally = Tally()
        self.wake_heartbeat: Callable[[], None] = lambda: None  # there is no heartbeat before the fork
        self.on_ending: Callable[[], None] = lambda: None  # an end is to be written outside Redis
        self.on_stray: Callable[[Any], None] = lambda _: None  # a message that came past the ledger is to be held
        self.tell_monitors: Callable[[Any], None] = lambda _: None  # what the ledger has put back
        self.is_looked_at: Callable[[Execution], bool] = lambda _: True  # without NVML nobody looks at the device
        self.has_run_in: frozenset[int] = frozenset()  # processes that may keep something in the device's memory
        self.said_unlimited: set[str] = set()  # tasks whose time limits have no effect here
        self.companion: Companion | None = None  # only where tasks run in main's own process
        self._executions: dict[str, Execution] = {}
        self._has_joined = False

    def keep(self) -> None:
        """What runs keeps its lease, or takes it back, before Redis, which may have forgotten it, offers the GPU.

        The heartbeat gets the same answers, and acts on them.
        """
        for execution in self.executions():
            fence = execution.claim.fence
            if not board.is_released(fence):
                self.ledger.renew(execution.claim, is_lost=board.is_lost(fence))

    def join(self, dead: str = "") -> list[str]:
        """Registers the GPU and this worker's presence; see `Ledger.join`."""
        self.keep()
        if self._has_joined and not self.is_running() and self.ledger.last_presence(self.device.id) is None:
            self.ledger.hold_back(self.device.id)  # Redis was emptied: a program there says so with its beat
        answer = self.ledger.join(self.device, self.pools, self.presence, dead)
        self._has_joined |= answer == ["joined"]
        return answer

    def count_children(self) -> bool:
        """Names this worker's processes in its presence; True where they are others than before.

        One that was named stays so until it is gone, whatever the pool says: a pool that closes tells of none.
        """
        kept = {pid: started for pid, started in self.presence.children if not is_gone(pid, started)}
        fresh = {pid: started_at(pid) for pid in self.child_pids() if pid not in kept}
        children = tuple(sorted({**kept, **fresh}.items()))
        is_changed = children != self.presence.children
        if is_changed:
            self.presence = replace(self.presence, children=children)
        return is_changed

    def runs_in(self, pid: int) -> None:
        """A task is in this process: whoever comes after us must know of it, now rather than at the next beat."""
        if pid not in self.has_run_in:
            self.has_run_in = frozenset({pid, *(one for one in self.has_run_in if not is_gone(one))})
        if pid not in (self.presence.pid, *(child for child, _ in self.presence.children)):
            self.wake_heartbeat()

    @property
    def is_closed(self) -> bool:
        """Does it consume nothing, or stop?"""
        return bool(self._closed_for)

    @property
    def stops(self) -> bool:
        """Does it stop?"""
        return STOPS in self._closed_for

    def close(self, why: str = STOPS) -> None:
        """No new work from now on, and what was not started goes back."""
        self._closed_for.add(why)
        self.tell()

    def turn_cold(self) -> None:
        """The worker stops, and ends what it runs."""
        if not self.is_cold:
            self.is_cold = True
            self.on_cold()

    def open(self, why: str) -> None:
        """New work again, unless it is closed for another reason too."""
        self._closed_for.discard(why)
        self.tell()
        self.on_open()

    @property
    def closed_because(self) -> list[str]:
        """Why it takes no work; empty where it does."""
        return sorted(self._closed_for)

    def tell(self) -> None:
        """Tells the ledger whether this worker takes work; where it does not hear, the heartbeat says it again."""
        with self._telling:
            if self.is_closed:
                self.ledger.close(self.device.id, self.presence)
            else:
                self.join()

    def join_again(self) -> None:
        """Redis has forgotten this GPU."""
        self.join()
        if self.is_closed:
            self.tell()

    def count_wakeup(self, source: str) -> None:
        """Something has made this worker look for work."""
        self.tally.count(WAKEUPS, self.device.id, source)

    def count_renewal(self, answer: str, fence: int, asked_at: float) -> None:
        """A lease was asked to be renewed. Called before the board knows of this renewal.

        Args:
            answer: The ledger's.
            fence: Of the run.
            asked_at: When it was asked, by the monotonic clock.
        """
        self.tally.count(RENEWALS, self.device.id, answer)
        if answer in ("renewed", "regained") and (before := board.renewed_at(fence)):
            left = before + self.ledger.settings.lease_ttl - asked_at
            self.tally.observe(TTL_LEFT, max(0.0, left), self.device.id)

    def executions(self) -> list[Execution]:
        """What this worker answers for, oldest first."""
        return list(self._executions.values())

    def is_running(self) -> bool:
        """Does this worker answer for a run?"""
        return bool(self._executions)

    def begin(self, claim: Claim, request: Any) -> None:
        """A ticket has started here."""
        self._executions[claim.token] = Execution(claim, request)
        if self.companion:
            self.companion.begin(claim)

    def end(self, claim: Claim, why: str | None = None, *, counted: bool = True, pid: int | None = None) -> None:
        """A run is over, as far as the event loop knows.

        Where the child has released its lease that is all; else the heartbeat's thread settles it at once.

        Args:
            claim: Of the run.
            why: None where its ticket ends, else why it goes back to its place.
            counted: Does it count as a delivery?
            pid: The process that must be gone before the GPU is free.
        """
        execution = self._executions.get(claim.token)
        if execution is None:
            return
        if why is None and board.is_released(claim.fence):
            self.settled(execution)
            return
        execution.end, execution.is_counted, execution.pid, execution.is_over = why, counted, pid, True
        self.wake_heartbeat()

    def settled(self, execution: Execution) -> None:
        """The ledger knows of the end."""
        self._executions.pop(execution.claim.token, None)
        if self.companion:
            self.companion.end(execution.claim)


#: Of this process (and, after the fork, of its children); None in a process that serves no GPU.
current: GPUWorker | None = None


def set_current(one: GPUWorker | None) -> None:
    """This process serves a GPU from now on, or none any more."""
    global current  # noqa: PLW0603
    current = one
