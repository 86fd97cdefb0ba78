"""What the ledger's operations answer, where a word is not enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Agenda:
    """What is due: seconds until each, None for never; `lapsed` are GPUs whose lease's deadline has passed."""

    now_ms: int
    deadline: float | None
    due: float | None
    ending: float | None
    lapsed: list[str]


@dataclass(frozen=True)
class Closed:
    """Why a claim was not made; `lease_ms` is what is left of the lease in the way (-1: it has no TTL, -2: none)."""

    reason: str
    lease_ms: int


@dataclass(frozen=True)
class Ending:
    """A ticket whose end must be written outside Redis, and why: cancelled, expired, lease_lost, unstarted, damaged.

    `first_run_ms` is when it first ran, in the epoch's milliseconds; 0 for never. `how`: of what its last run died,
    as the journal says it; empty where none did.
    """

    ticket: str
    task_id: str
    task: str
    why: str
    deliveries: int
    first_run_ms: int
    message: str
    how: str = ""

    @classmethod
    def from_reply(cls, found: list[Any]) -> Ending:
        """As the scripts name it."""
        ticket, task_id, task, why, deliveries, first_run_ms, how, message = found
        return cls(ticket, task_id, task, why, int(deliveries), int(first_run_ms), message, how)


@dataclass(frozen=True)
class Taken:
    """A ticket that was taken back: its end is due. `has_run`: an earlier run of it may have stored an end."""

    ticket: str
    task_id: str
    task: str
    has_run: bool


@dataclass(frozen=True)
class Cancelled:
    """What CANCEL found of a task.

    Attributes:
        is_known: The ledger has it: else it has ended, or was never held.
        running_on: The GPUs where it runs already, which it goes on doing.
        taken: What was taken back: the caller sees to their ends (`dispatch.revoking`).
    """

    is_known: bool
    running_on: list[str]
    taken: list[Taken]


@dataclass(frozen=True)
class Bumped:
    """What BUMP found of a task.

    Attributes:
        word: 'bumped', 'given' (a GPU has it already), 'ending' or 'unknown'.
        places: Where it waits now: the pool, or the GPU that it is pinned to, and its position there (from 1; None
            where it is not due yet).
    """

    word: str
    places: list[tuple[str, int | None]]


@dataclass(frozen=True)
class Forced:
    """Who loses a GPU's lease by order.

    Attributes:
        word: 'started' (a run, which is told), 'program' (the same, of no task), 'claimed' (it was not started, and
            goes back to its place), 'foreign', 'free' (nobody has the lease) or 'unknown' (no such GPU).
        gpu: Its id.
        loser: The task and its id, and who serves the GPU; or the foreign holder.
    """

    word: str
    gpu: str = ""
    loser: str = ""
