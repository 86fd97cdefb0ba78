"""What happened to a task, and where it is now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_gpulease.ledger.census import gpu_called
from celery_gpulease.ledger.journal import entries_backward

if TYPE_CHECKING:
    from celery_gpulease.ledger.journal import Entry
    from celery_gpulease.ledger.ledger import Ledger


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
        held_seconds: Since it was held, or is due (`eta`, `countdown`): 0 before.
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


def story_of(ledger: Ledger, task_id: str) -> list[Entry]:
    """What the journal still knows of a task, in order.

    An entry of a ticket that had vanished does not name its task: it is found by the ticket.
    """
    entries = list(entries_backward(ledger))
    tickets = {one.ticket for one in entries if one.task_id == task_id and one.ticket}
    return [one for one in reversed(entries) if one.task_id == task_id or one.ticket in tickets]


def whereabouts(ledger: Ledger, task_id: str) -> list[Whereabouts]:
    """Where each ticket of a task is now; none where the ledger has none, because it has ended say."""
    return [_whereabouts(ledger, found) for found in ledger.locate(task_id)]


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
