"""What their people may change: `cancel`, `bump`, `drain`, `undrain`, `release` and `reconcile`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from celery.states import READY_STATES

from celery_gpulease.dispatch.revoking import cancel as cancel_tasks
from celery_gpulease.ledger.views import held_of_pool
from celery_gpulease.model import PRIORITIES, check_pool, unique
from celery_gpulease.operate.cli.completion import complete_gpu, complete_task
from celery_gpulease.operate.cli.group import command, known, not_empty, this_app
from celery_gpulease.operate.tables import counted, harmless
from celery_gpulease.reconcile.corrections import reconcile as reconcile_ledger

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger


@command
@click.option("--dry-run", is_flag=True, help="Only say what would be corrected.")
def reconcile(ledger: Ledger, *, dry_run: bool) -> None:
    """Compare Redis with what the workers really do, now; print each correction."""
    found = reconcile_ledger(ledger, unique(), change=not dry_run)
    if found is None:
        message = "another process reconciles at this moment"
        raise click.ClickException(message)
    for correction in found:
        click.echo(harmless(str(correction)))
    number = sum(one.is_corrected for one in found)
    click.echo(counted(number, "correction") + (" to make" if dry_run else ""))


@command
@click.argument("task_id", required=False, shell_complete=complete_task)
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
    found, trouble = cancel_tasks(this_app(), ledger, task_ids)
    number = sum(bool(one.taken) for one in found)
    if trouble:
        message = f"{counted(number, 'task')} taken back; a GPU worker will store REVOKED, which failed here: {trouble}"
        raise click.ClickException(message)
    click.echo(f"{counted(number, 'task')} of pool {pool} cancelled")


def cancel_one(ledger: Ledger, task_id: str) -> None:
    """Cancels what is held of one task; why not, where nothing is."""
    app = this_app()
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
@click.argument("task_id", shell_complete=complete_task, callback=not_empty)
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
        raise not_held(this_app(), task_id, is_known=found.word != "unknown")
    for where, position in found.places:
        place = "is not due yet" if position is None else f"is number {position} in the line of {where}"
        click.echo(f"task {task_id} has priority {priority} now, and {place}")


@command
@click.argument("gpu", shell_complete=complete_gpu)
@click.option("--force", is_flag=True, help="Yes: whoever has the lease loses it.")
def release(ledger: Ledger, gpu: str, *, force: bool) -> None:
    """Take the lease of GPU away by hand, whoever has it; say who loses it."""
    if not force:
        message = f"whoever has the lease of {gpu} would lose it, and a task there would be stopped: say --force"
        raise click.ClickException(message)
    found = ledger.force(gpu)
    known(ledger, None if found.word == "unknown" else found.gpu, gpu)
    if found.word == "free":
        message = f"nobody has the lease of GPU {found.gpu}"
        raise click.ClickException(message)
    what = {
        "started": "loses it: it is stopped and given out again; where it cannot be, it runs to its own end",
        "claimed": "loses it before it started, and goes back to its place",
        "program": "loses it, and is stopped",
        "foreign": "loses it",
    }
    click.echo(harmless(f"GPU {found.gpu}: {found.loser} {what[found.word]}"))


@command
@click.argument("gpu", shell_complete=complete_gpu)
def drain(ledger: Ledger, gpu: str) -> None:
    """Give GPU no new work; what runs there ends by itself."""
    click.echo(f"{known(ledger, ledger.drain(gpu, drained=True), gpu)} is draining")


@command
@click.argument("gpu", shell_complete=complete_gpu)
def undrain(ledger: Ledger, gpu: str) -> None:
    """Let GPU take work again."""
    click.echo(f"{known(ledger, ledger.drain(gpu, drained=False), gpu)} takes work")


def not_held(app: Any, task_id: str, *, is_known: bool) -> click.ClickException:
    """Says why nothing of a task waits: it has ended, or nobody ever held it."""
    state = app.AsyncResult(task_id).state
    if state in READY_STATES:
        return click.ClickException(f"task {task_id} has ended already: {state}")
    if is_known:
        return click.ClickException(f"task {task_id} has ended already: a GPU worker is about to write its end")
    return click.ClickException(f"no task {task_id} is held")
