"""`celery -A proj gpulease …`: what is true of the GPUs, and what their people may change."""

from __future__ import annotations

import json
import sys
import uuid
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click
from celery.states import READY_STATES

from celery_gpulease.dispatch.revoking import cancel as cancel_tasks
from celery_gpulease.exceptions import GPULeaseError, TurnTimeout
from celery_gpulease.installed import installation
from celery_gpulease.ledger.views import gpu_rows, held_of_pool, pending_rows, pool_rows
from celery_gpulease.model import DEFAULT_POOL, PRIORITIES, check_pool
from celery_gpulease.programs.running import run as run_program
from celery_gpulease.reconcile.corrections import reconcile as reconcile_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery_gpulease.ledger import Ledger

#: The exit code of `run` where no turn came in time, as of timeout(1).
TIMED_OUT: Final = 124

as_json = click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")


@click.group()
def gpulease() -> None:
    """See and steer the GPUs and their leases."""


def command(run: Callable[..., None]) -> click.Command:
    """A sub-command: its first argument is the ledger of the app; our errors are told without a traceback."""

    @click.pass_context
    @wraps(run)
    def with_ledger(context: click.Context, /, *args: Any, **options: Any) -> None:
        try:
            run(installation(context.obj.app).ledger, *args, **options)
        except GPULeaseError as error:
            raise click.ClickException(f"{type(error).__name__}: {error}") from error

    return gpulease.command(run.__name__)(with_ledger)


@command
@as_json
def status(ledger: Ledger, *, is_json: bool) -> None:
    """Every GPU and its lease, every pool and who waits for it."""
    gpus = gpu_rows(ledger)
    pools = pool_rows(ledger, gpus)
    if is_json:
        print_json({"pools": {name: asdict(row) for name, row in pools.items()}, "gpus": [asdict(row) for row in gpus]})
        return
    heads = ("GPU", "POOLS", "STATE", "TASK", "HELD", "TTL", "WORKER", "REASON")
    print_table(heads, [
        (gpu.id, ",".join(gpu.pools), gpu.state, task_of(gpu.task, gpu.task_id), seconds(gpu.held_seconds),
         seconds(gpu.ttl_seconds), gpu.worker, gpu.reason)
        for gpu in gpus
    ])  # fmt: skip
    click.echo()
    print_table(
        ("POOL", "PENDING", "OLDEST", "SCHEDULED"),
        [(name, row.pending, seconds(row.oldest_seconds), row.scheduled) for name, row in pools.items()],
    )


@command
@as_json
def pending(ledger: Ledger, *, is_json: bool) -> None:
    """Who waits, in order, and for what."""
    rows = pending_rows(ledger, gpu_rows(ledger))
    if is_json:
        print_json([asdict(row) for row in rows])
        return
    cells = [
        (row.pool, row.position, row.priority, seconds(row.age_seconds), task_of(row.task, row.task_id), row.reason)
        for row in rows
    ]
    if not cells:
        click.echo("nobody waits")
        return
    print_table(("POOL", "POSITION", "PRIORITY", "AGE", "TASK", "REASON"), cells)  # fmt: skip


@command
@click.option("--dry-run", is_flag=True, help="Only say what would be corrected.")
def reconcile(ledger: Ledger, *, dry_run: bool) -> None:
    """Compare Redis with what the workers really do, now; print each correction."""
    found = reconcile_ledger(ledger, uuid.uuid4().hex, change=not dry_run)
    if found is None:
        message = "another process reconciles at this moment"
        raise click.ClickException(message)
    for correction in found:
        click.echo(str(correction))
    number = sum(one.is_corrected for one in found)
    click.echo(counted(number, "correction") + (" to make" if dry_run else ""))


@command
@click.argument("task_id", required=False)
@click.option("--all", "is_all", is_flag=True, help="All that are held of a pool.")
@click.option("--pool", help="The pool, with --all.")
@click.option("-f", "--force", "--yes", "is_sure", is_flag=True, help="Don't ask, with --all.")
def cancel(ledger: Ledger, task_id: str | None, *, is_all: bool, pool: str | None, is_sure: bool) -> None:
    """Take the held task TASK_ID back: its state becomes REVOKED. Or, with --all, every task that a pool holds."""
    if is_all and pool and not task_id:
        cancel_pool(ledger, check_pool(pool), is_sure=is_sure)
    elif task_id and not (is_all or pool):
        cancel_one(ledger, task_id)
    else:
        message = "name one TASK_ID, or a whole pool: --all --pool POOL"
        raise click.UsageError(message)


def cancel_pool(ledger: Ledger, pool: str, *, is_sure: bool) -> None:
    """Cancels all that a pool holds."""
    task_ids = held_of_pool(ledger, pool)
    if not task_ids:
        click.echo(f"nothing is held of pool {pool}")
        return
    if not is_sure:
        question = f"{counted(len(task_ids), 'held task')} of pool {pool} will be cancelled, for good. Are you sure?"
        click.confirm(question, abort=True)
    found, trouble = cancel_tasks(click.get_current_context().obj.app, ledger, task_ids)
    number = sum(bool(one.taken) for one in found)
    if trouble:
        message = f"{counted(number, 'task')} taken back; a GPU worker will store REVOKED, which failed here: {trouble}"
        raise click.ClickException(message)
    click.echo(f"{counted(number, 'task')} of pool {pool} cancelled")


def cancel_one(ledger: Ledger, task_id: str) -> None:
    """Cancels what is held of one task; why not, where nothing is."""
    app = click.get_current_context().obj.app
    (found,), trouble = cancel_tasks(app, ledger, [task_id])
    if found.running_on:
        waiting = "what waited of it is cancelled, but " if found.taken else ""
        message = (
            f"{waiting}task {task_id} runs already, on {', '.join(found.running_on)}: "
            "only what waits can be cancelled; AsyncResult.revoke(terminate=True) stops a task that runs, "
            f"`gpulease release {found.running_on[0]} --force` a program"
        )
        raise click.ClickException(message)
    if not found.taken:
        raise not_held(app, task_id, is_known=found.is_known)
    if trouble:
        message = f"task {task_id} is taken back; a GPU worker will store REVOKED, which failed here: {trouble}"
        raise click.ClickException(message)
    click.echo(f"task {task_id} is cancelled")


@command
@click.argument("task_id")
@click.option(
    "--priority",
    type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]),
    required=True,
    help=f"From {PRIORITIES[0]} to {PRIORITIES[-1]}, as the broker counts: Redis serves 0 first, RabbitMQ last.",
)
def bump(ledger: Ledger, task_id: str, *, priority: int) -> None:
    """Change the priority of the held task TASK_ID; within a priority, who came first goes first."""
    found = ledger.bump(task_id, priority)
    if found.word == "given":
        message = f"task {task_id} waits no more: a GPU has it already"
        raise click.ClickException(message)
    if not found.places:
        raise not_held(click.get_current_context().obj.app, task_id, is_known=found.word != "unknown")
    for where, position in found.places:
        place = "is not due yet" if position is None else f"is number {position} in the line of {where}"
        click.echo(f"task {task_id} has priority {priority} now, and {place}")


@command
@click.argument("gpu")
@click.option("--force", is_flag=True, help="Yes: whoever has the lease loses it.")
def release(ledger: Ledger, gpu: str, *, force: bool) -> None:
    """Take the lease of GPU away by hand, whoever has it; say who loses it."""
    if not force:
        message = f"whoever has the lease of {gpu} would lose it, and a task there would be stopped: say --force"
        raise click.ClickException(message)
    found = ledger.force(gpu)
    known(None if found.word == "unknown" else found.gpu, gpu)
    if found.word == "free":
        message = f"nobody has the lease of GPU {found.gpu}"
        raise click.ClickException(message)
    what = {
        "started": "loses it: it is stopped and given out again; where it cannot be, it runs to its own end",
        "claimed": "loses it before it started, and goes back to its place",
        "program": "loses it, and is stopped",
        "foreign": "loses it",
    }
    click.echo(f"GPU {found.gpu}: {found.loser} {what[found.word]}")


@command
@click.argument("gpu")
def drain(ledger: Ledger, gpu: str) -> None:
    """No new work for GPU; what runs there ends by itself."""
    click.echo(f"{known(ledger.drain(gpu, drained=True), gpu)} is draining")


@command
@click.argument("gpu")
def undrain(ledger: Ledger, gpu: str) -> None:
    """Work for GPU again."""
    click.echo(f"{known(ledger.drain(gpu, drained=False), gpu)} takes work")


@command
@click.option("--pool", default=DEFAULT_POOL, show_default=True, help="Whose GPUs will do.")
@click.option(
    "--priority",
    type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]),
    default=0,
    show_default=True,
    help="As the broker counts: Redis serves 0 first, RabbitMQ last.",
)
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait for its turn; then exit code 124.")
@click.argument("program", metavar="-- CMD…", nargs=-1, required=True, type=click.UNPROCESSED)
def run(ledger: Ledger, program: tuple[str, ...], *, pool: str, priority: int, timeout: float | None) -> None:
    """Run any program on a GPU of this host, under a lease, when its turn comes; its exit code is passed on."""
    try:
        code = run_program(ledger, program, check_pool(pool), priority, timeout)
    except TurnTimeout as error:
        click.echo(f"Error: {type(error).__name__}: {error}", err=True)
        code = TIMED_OUT
    click.get_current_context().exit(code)


run.allow_interspersed_args = False  # the program's options are its own


def known(gpu: str | None, name: str) -> str:
    """The id of a GPU; where the ledger does not know it, an error for people."""
    if gpu is None:
        message = f"no GPU {name!r} is registered; `gpulease status` lists them"
        raise click.ClickException(message)
    return gpu


def not_held(app: Any, task_id: str, *, is_known: bool) -> click.ClickException:
    """Says why nothing of a task waits: it has ended, or nobody ever held it."""
    state = app.AsyncResult(task_id).state
    if state in READY_STATES:
        return click.ClickException(f"task {task_id} has ended already: {state}")
    if is_known:
        return click.ClickException(f"task {task_id} has ended already: a GPU worker is about to write its end")
    return click.ClickException(f"no task {task_id} is held")


def counted(number: int, what: str) -> str:
    """A number of things, for people."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_json(value: object) -> None:
    """Prints one JSON value."""
    json.dump(value, sys.stdout, indent=2)
    click.echo()


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table for people; None is shown as '-'."""
    lines = [tuple(heads), *(tuple("-" if cell in (None, "") else str(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def seconds(value: float | None) -> str | None:
    """Seconds for people."""
    return None if value is None else f"{value:.1f}s"


def task_of(name: str | None, task_id: str | None) -> str | None:
    """A task for people."""
    return f"{name}[{task_id}]" if task_id else None
