"""What runs where, and who waits for what: `status` and `pending`."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.ledger.views import gpu_rows, pending_rows, pool_rows
from celery_gpulease.operate.cli.group import Finite, as_json, command, print_json, this_screen
from celery_gpulease.operate.tables import Table, seconds, task_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.ledger.views import GPURow


@command
@as_json
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C: live on a terminal, one after the other in a pipe.")
@click.option("--every", type=Finite(0.1), default=1.0, show_default=True, help="Seconds between two looks of --watch.")
def status(ledger: Ledger, *, is_json: bool, watch: bool, every: float) -> None:
    """Show every GPU and its lease, every pool and how many wait for it.

    A GPU is free, leased (a task, or another program, has it), draining (no new work, by order), quarantined (it or its
    worker is unwell: see the reason), or offline (no worker serves it). HELD is how long it has been leased (by a
    foreign holder: since its worker saw that, within a heartbeat), TTL when the lease would end without a heartbeat.
    """
    if is_json:
        keep_looking(lambda: print_json(status_of(ledger)), every if watch else None)
    elif watch:
        with this_screen().live() as show:
            keep_looking(lambda: show(*_lively(ledger)), every)
    else:
        this_screen().show(*status_tables(ledger))


def keep_looking(look: Callable[[], None], every: float | None) -> None:
    """Looks again and again, until Ctrl-C; once, where there is no pace."""
    look()
    with suppress(KeyboardInterrupt):
        while every is not None:
            time.sleep(every)
            look()


def _lively(ledger: Ledger) -> list[Table | str]:
    """Somebody watches: that Redis is away is a sight too, and it comes back."""
    now = time.strftime("%H:%M:%S")
    try:
        return [now, "", *status_tables(ledger)]
    except LedgerUnavailable as error:
        return [now, "", str(error)]


def status_of(ledger: Ledger) -> dict[str, object]:
    """The status as programs read it."""
    gpus = gpu_rows(ledger)
    pools = pool_rows(ledger, gpus)
    return {"pools": {name: asdict(row) for name, row in pools.items()}, "gpus": [asdict(row) for row in gpus]}


def status_tables(ledger: Ledger) -> list[Table | str]:
    """The same for people."""
    gpus = gpu_rows(ledger)
    pools = pool_rows(ledger, gpus)
    none = ("no GPU is registered: its worker does that, once: celery worker --gpu 0", "")
    by_nvml = ("UUID", "MODEL") if any(gpu.id != gpu.name or gpu.model for gpu in gpus) else ()
    return [
        *(() if gpus else none),
        Table(
            ("GPU", *by_nvml, "POOLS", "STATE", "TASK", "HELD", "TTL", "WORKER", "REASON"),
            [
                (gpu.name, *(_by_nvml(gpu) if by_nvml else ()), ",".join(gpu.pools), gpu.state,
                 task_of(gpu.task, gpu.task_id), seconds(gpu.held_seconds), seconds(gpu.ttl_seconds), gpu.worker,
                 gpu.reason)
                for gpu in gpus
            ],
            leave=("TASK", *by_nvml, "REASON", "WORKER", "TTL", "POOLS", "HELD"),
        ),
        "",
        Table(
            ("POOL", "PENDING", "OLDEST", "SCHEDULED"),
            [(name, row.pending, seconds(row.oldest_seconds), row.scheduled) for name, row in pools.items()],
        ),
    ]  # fmt: skip


def _by_nvml(gpu: GPURow) -> tuple[str | None, str | None]:
    """What only NVML tells: its UUID, what it is, and its memory."""
    memory = f" {gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
    return gpu.id if gpu.id != gpu.name else None, gpu.model and gpu.model + memory


@command
@as_json
def pending(ledger: Ledger, *, is_json: bool) -> None:
    """Show who waits, in order, and for what.

    POSITION counts within the line that a task stands in: its pool's, or that of the GPU which it is pinned to. What is
    not due yet (countdown, eta, a rate limit) has none. AGE counts from when it was sent, also where it has run before;
    with countdown or eta, from when it is due.
    """
    rows = list(pending_rows(ledger, gpu_rows(ledger)))
    if is_json:
        print_json([asdict(row) for row in rows])
    elif not rows:
        click.echo("nobody waits")
    else:
        cells = [
            (row.pool, row.gpu, row.position, row.priority, seconds(row.age_seconds), task_of(row.task, row.task_id),
             row.reason)
            for row in rows
        ]  # fmt: skip
        heads = ("POOL", "GPU", "POSITION", "PRIORITY", "AGE", "TASK", "REASON")
        this_screen().show(Table(heads, cells, leave=("TASK", "REASON", "GPU", "PRIORITY")))
