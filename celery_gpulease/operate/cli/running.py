"""`run`: any program under a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from celery_gpulease.exceptions import TurnTimeout
from celery_gpulease.model import DEFAULT_POOL, PRIORITIES, check_pool
from celery_gpulease.operate.cli.group import Finite, command
from celery_gpulease.programs.running import run as run_program

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger

#: The exit code of `run` where no turn came in time, as of timeout(1).
TIMED_OUT: Final = 124


@command
@click.option("--pool", default=DEFAULT_POOL, show_default=True, help="Whose GPUs will do.")
@click.option(
    "--priority",
    type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]),
    default=0,
    show_default=True,
    help="As the broker counts: Redis serves 0 first, RabbitMQ last.",
)
@click.option("--timeout", type=Finite(min=0), help="Seconds to wait for its turn; then exit code 124.")
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
