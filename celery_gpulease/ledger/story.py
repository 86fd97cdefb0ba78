"""What happened to a task, or to all of them, and where a task is now: reads only, in pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.ledger.census import gpu_called
from celery_gpulease.ledger.connection import in_our_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger.ledger import Ledger

#: Entries in one round trip.
PAGE: Final = 1000


@dataclass(frozen=True)
class Event:
    """One entry of the journal: when (the epoch's seconds), what, to whom, where, and why."""

    at: float
    what: str
    task_id: str
    ticket: str
    gpu: str
    detail: str


@dataclass(frozen=True)
class Whereabouts:
    """Where one ticket of a task is now.

    Attributes:
        ticket: Its id.
        task: The task's name.
        state: As the ledger has it: scheduled, pending, claimed, started, tail or ending.
        pool: Which it asks for.
        pin: The id of the GPU that it waits for, or empty.
        priority: In the broker's direction.
        position: In its line, from 1; None where it does not wait there.
        held_seconds: Since it was held.
        due_seconds: Until it is due; None where it does not wait for a time.
        deliveries: How often it was given out.
        why: It ends, or runs on without its lease.
        gpu: Where it was given to, or empty.
        gpu_seconds: Since it was started there, or claimed.
    """

    ticket: str
    task: str
    state: str
    pool: str
    pin: str
    priority: int
    position: int | None
    held_seconds: float
    due_seconds: float | None
    deliveries: int
    why: str
    gpu: str
    gpu_seconds: float | None


def events(ledger: Ledger) -> Iterator[Event]:
    """The journal, the last entry first, in pages; it holds about ten thousand.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    before = "+"
    while True:
        with in_our_words("journal"):
            page = ledger.client.xrevrange(ledger.keys.named("journal"), max=before, count=PAGE)
        yield from (_event(number, fields) for number, fields in page)
        if len(page) < PAGE:
            return
        before = f"({page[-1][0]}"


def story_of(ledger: Ledger, task_id: str) -> list[Event]:
    """What the journal still knows of a task, in order.

    An entry of a ticket that had vanished does not name its task: it is found by the ticket.
    """
    all_events = list(events(ledger))
    tickets = {one.ticket for one in all_events if one.task_id == task_id and one.ticket}
    return [one for one in reversed(all_events) if one.task_id == task_id or one.ticket in tickets]


def whereabouts(ledger: Ledger, task_id: str) -> list[Whereabouts]:
    """Where each ticket of a task is now; none where the ledger has none, because it has ended say."""
    return [_whereabouts(ledger, found) for found in ledger.locate(task_id)]


def _event(number: str, fields: dict[str, str]) -> Event:
    at = int(number.partition("-")[0]) / 1000
    return Event(at, *(fields.get(name, "") for name in ("what", "task_id", "ticket", "gpu", "detail")))


def _whereabouts(ledger: Ledger, found: list[Any]) -> Whereabouts:
    (ticket, task, state, pool, pin, priority, position, held_ms, due_ms, deliveries, why, gpu, gpu_ms) = found
    return Whereabouts(
        ticket=ticket,
        task=task,
        state=state,
        pool=pool,
        pin=(gpu_called(ledger, pin) or pin) if pin else "",
        priority=ledger.rank(int(priority)),
        position=int(position) or None,
        held_seconds=int(held_ms) / 1000,
        due_seconds=int(due_ms) / 1000 if state == "scheduled" else None,
        deliveries=int(deliveries),
        why=why,
        gpu=gpu,
        gpu_seconds=int(gpu_ms) / 1000 if gpu else None,
    )
