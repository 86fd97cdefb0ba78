"""What people and programs are shown: reads only, in pages, so that no view stops the server."""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.ledger.connection import in_our_words
from celery_gpulease.ledger.keys import literally
from celery_gpulease.ledger.reasons import CLOSING, why_gpu_waits, why_not_due, why_pool_waits
from celery_gpulease.ledger.turns import host_and_pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_gpulease.ledger.ledger import Ledger
    from celery_gpulease.model import Held

#: GPUs, or tickets, in one round trip.
PAGE: Final = 100
#: The scores of one priority (lua/include/line.lua).
PRIORITY_STEP: Final = 2**45


@dataclass(frozen=True)
class GPURow:
    """A GPU as `status` shows it.

    `state`: free, leased, draining, quarantined or offline. `held_seconds`: since it was leased; of a foreign holder,
    since the GPU's worker saw that, which it does within a heartbeat. `name` is `<host>:<index>`, also where the id is
    a UUID; the model and the memory are known with NVML only.
    """

    id: str
    pools: list[str]
    state: str
    reason: str | None
    task_id: str | None
    task: str | None
    worker: str | None
    held_seconds: float | None
    ttl_seconds: float | None
    fence: int | None
    name: str
    index: int | None
    model: str | None
    memory_bytes: int | None


@dataclass(frozen=True)
class PoolRow:
    """A pool as `status` shows it."""

    pending: int
    oldest_seconds: float | None
    scheduled: int


@dataclass(frozen=True)
class PendingRow:
    """A held task as `pending` shows it.

    `position` counts from 1 within its line, None when it is not due yet; `age_seconds` from when it was sent, or since
    it is due (`eta`, `countdown`; 0 before); `gpu` is the only one that will do, as its sender has called it: the line
    is that one's then.
    """

    task_id: str
    task: str
    pool: str
    position: int | None
    priority: int
    age_seconds: float
    reason: str
    gpu: str | None


def gpu_names(ledger: Ledger) -> list[str]:
    """The ids of all registered GPUs, sorted."""
    with in_our_words("status"):
        return sorted(map(str, ledger.client.zrange(ledger.keys.named("gpus"), 0, -1)))


def gpu_rows(ledger: Ledger) -> list[GPURow]:
    """Every registered GPU."""
    names = gpu_names(ledger)
    return [_gpu_row(found) for found in _about(ledger, "snapshot", names)]


def pool_rows(ledger: Ledger, gpus: list[GPURow]) -> dict[str, PoolRow]:
    """Every pool that somebody serves or waits for."""
    served = {pool for gpu in gpus for pool in gpu.pools}
    with in_our_words("status"):
        scheduled = {str(pool) for pool in ledger.client.hkeys(ledger.keys.named("scheduled_count"))}
        waited_for = {name for kind, name in named_lines(ledger) if kind != "pinned"}
    rows = {
        pool: PoolRow(int(pending), None if first_ms < 0 else first_ms / 1000, int(scheduled))
        for pool, pending, first_ms, scheduled in _about(ledger, "survey", sorted(served | scheduled | waited_for))
    }
    return {pool: row for pool, row in rows.items() if pool in served or row.pending or row.scheduled}


def held_by_pool(ledger: Ledger) -> dict[str, int]:
    """How many wait in each pool where somebody does, scheduled ones too."""
    rows = pool_rows(ledger, [])
    return {name: row.pending + row.scheduled for name, row in rows.items() if row.pending + row.scheduled}


def held_of_pool(ledger: Ledger, pool: str) -> list[str]:
    """The ids of the tasks that wait in a pool, scheduled ones too, each once."""
    keys, client, found = ledger.keys, ledger.client, list[str]()
    with in_our_words("pending"):
        for kind, name in (("pending", pool), ("pinned_in", pool), ("scheduled", "")):
            tickets = [ticket for ticket, _ in _scan(ledger, keys.named(kind, name))]
            for at in range(0, len(tickets), PAGE):
                with client.pipeline(transaction=False) as pipe:
                    for ticket in tickets[at : at + PAGE]:
                        pipe.hmget(keys.named("ticket", ticket), "task_id", "pool")
                    found += [task_id for task_id, its in pipe.execute() if task_id and its == pool]
    return list(dict.fromkeys(found))


def pending_rows(ledger: Ledger, gpus: list[GPURow]) -> Iterator[PendingRow]:
    """Who waits, line by line in order: pinned lines, then pools, then what is not due yet."""
    with in_our_words("pending"):
        now = _now_ms(ledger)
        lines = {
            ("pending", program[1]) if (program := host_and_pool(name)) else (kind, name)
            for kind, name in named_lines(ledger)
            if kind != "pinned_in"
        }
        for kind, name in sorted(lines, key=lambda line: (line[0] == "pending", line)):
            for position, (ticket, reason) in enumerate(_standing(ledger, gpus, kind, name), 1):
                if row := _pending_row(ledger, ticket, now, position, reason):
                    yield row
        for ticket, due in _scan(ledger, ledger.keys.named("scheduled")):
            deliveries, pool, pin = ledger.client.hmget(
                ledger.keys.named("ticket", ticket), ("deliveries", "pool", "pin")
            )
            reason = why_not_due(max(0.0, due - now) / 1000, int(deliveries or 0))
            if not pin and not any(pool in gpu.pools for gpu in gpus):
                reason += f"; {why_pool_waits(pool, gpus)}"
            if row := _pending_row(ledger, ticket, now, None, reason):
                yield row


@dataclass(frozen=True)
class Place:
    """Where a message would wait that is held now: `position` counts from 1, None when it is not due yet."""

    position: int | None


def place_at_the_end(ledger: Ledger, held: Held) -> Place | None:
    """The place behind all that came before it, at a cost that does not grow with the line.

    None where the ledger has this task id already.
    """
    keys = ledger.keys
    line = keys.named("pinned", held.pin) if held.pin else keys.named("pending", held.pool)
    with in_our_words("place"), ledger.client.pipeline(transaction=False) as pipe:
        pipe.exists(keys.named("task", held.task_id))
        pipe.zcount(line, "-inf", f"({(ledger.rank(held.priority) + 1) * PRIORITY_STEP}")
        pipe.time()
        has_ticket, before, (seconds, _) = pipe.execute()
    if has_ticket:
        return None
    return Place(None if held.eta_ms > int(seconds) * 1000 else before + 1)


def named_lines(ledger: Ledger) -> set[tuple[str, str]]:
    """The kind and the name of each line, and of the index of pinned tickets, also of some that are empty."""
    found = ledger.client.sscan_iter(ledger.keys.named("lines"), count=PAGE)
    return {(kind, name) for kind, _, name in (str(line).partition(":") for line in found)}


def is_known(ledger: Ledger, ticket: str) -> bool:
    """Is this ticket in the ledger, or has it ended a moment ago? Then HOLD would do nothing."""
    with in_our_words("is_known"), ledger.client.pipeline(transaction=False) as pipe:
        pipe.exists(ledger.keys.named("ticket", ticket))
        pipe.zscore(ledger.keys.named("ended"), ticket)
        exists, ended = pipe.execute()
    return bool(exists) or ended is not None


def _now_ms(ledger: Ledger) -> int:
    seconds, microseconds = ledger.client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def _gpu_row(found: list[Any]) -> GPURow:
    (gpu, pools, presence, alive, lease, ttl_ms, ticket, token, claim_state, held_ms, fence, task_id, task, closed,
     quarantine, wish, name, index, model, memory_bytes) = found  # fmt: skip
    worker = json.loads(presence)["worker"] if presence else None
    is_ours = lease is not None and lease == token
    state, reason = _state(
        worker, alive=bool(alive), lease=lease, is_ours=is_ours, closed=closed, quarantine=quarantine
    )
    if state == "free" and wish is not None:
        reason = f"wanted by {wish}"
    elif state == "free" and claim_state == "tail":
        reason = "busy with a task that runs on without the lease"
    runs = is_ours or claim_state == "tail"
    return GPURow(
        id=gpu,
        pools=(pools or "").split(","),
        state=state,
        reason=reason if lease is None or ttl_ms != -1 else "leased without a TTL by " + str(lease),
        task_id=task_id if ticket and runs else None,
        task=task if ticket and runs else None,
        worker=worker,
        held_seconds=held_ms / 1000 if lease is not None and held_ms is not None else None,
        ttl_seconds=ttl_ms / 1000 if ttl_ms >= 0 else None,
        fence=int(fence) if is_ours and fence else None,
        name=name or gpu,
        index=int(index) if index else None,
        model=model or None,
        memory_bytes=int(memory_bytes or 0) or None,
    )


def _state(
    worker: str | None, *, alive: bool, lease: str | None, is_ours: bool, closed: str | None, quarantine: str | None
) -> tuple[str, str | None]:
    foreign = f"leased by a foreign holder: {lease}" if lease is not None and not is_ours else None
    if alive and closed == "drain":
        return "draining", "; ".join(filter(None, ("drained by order", foreign)))
    if lease is not None:
        closing = CLOSING if worker and closed == "closing" else None
        return "leased", "; ".join(filter(None, (foreign, closing))) or None
    if not alive:
        return "offline", "drained by order" if closed == "drain" else "no living worker"
    if closed == "closing":
        return "offline", CLOSING
    if closed == "quarantine":
        return "quarantined", quarantine
    return "free", None


def _about(ledger: Ledger, script: str, names: Sequence[str]) -> Iterator[list[Any]]:
    for at in range(0, len(names), PAGE):
        yield from ledger.about(script, names[at : at + PAGE])


def _scan(ledger: Ledger, key: str) -> Iterator[tuple[str, float]]:
    at = 0
    while page := ledger.client.zrange(key, at, at + PAGE - 1, withscores=True):
        yield from page
        at += PAGE


def _standing(ledger: Ledger, gpus: list[GPURow], kind: str, name: str) -> Iterator[tuple[str, str]]:
    """The tickets of a line, in order, and why each waits; those of programs among those of their pool."""

    def places(line: tuple[str, str], reason: str) -> Iterator[tuple[float, str, str]]:
        for ticket, score in _scan(ledger, ledger.keys.named(*line)):
            yield score, ticket, reason

    beside = _lines_beside(ledger, gpus, kind, name)
    for _, ticket, reason in heapq.merge(*(places(line, reason) for line, reason in beside)):
        yield ticket, reason


def _lines_beside(ledger: Ledger, gpus: list[GPURow], kind: str, name: str) -> Iterator[tuple[tuple[str, str], str]]:
    if kind == "pinned":
        yield (kind, name), why_gpu_waits(name, gpus)
        return
    yield (kind, name), why_pool_waits(name, gpus)
    for other, pin in sorted(named_lines(ledger)):
        host, pool = host_and_pool(pin) or ("", "")
        if other == "pinned" and pool == name:
            mine = _ids_of(ledger, host)
            reason = why_pool_waits(name, [gpu for gpu in gpus if gpu.id in mine])
            yield (other, pin), f"it waits for a GPU of host {host}: {reason}"


def _ids_of(ledger: Ledger, host: str) -> set[str]:
    """The GPUs of one host."""
    names = ledger.client.hscan_iter(ledger.keys.named("names"), f"{literally(host)}:*", count=PAGE)
    return {str(gpu) for _, gpu in names}


def _pending_row(ledger: Ledger, ticket: str, now: int, position: int | None, reason: str) -> PendingRow | None:
    fields = ("task_id", "task", "pool", "priority", "held_ms", "eta_ms", "pin")
    found = ledger.client.hmget(ledger.keys.named("ticket", ticket), fields)
    if None in found:  # it started or ended between two looks
        return None
    task_id, task, pool, priority, held_ms, eta_ms, pin = found
    since = max(int(held_ms), int(eta_ms))
    return PendingRow(
        task_id,
        task,
        pool,
        position,
        ledger.rank(int(priority)),
        max(0, now - since) / 1000,
        reason,
        None if host_and_pool(pin) else pin or None,
    )
