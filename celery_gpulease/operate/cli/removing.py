"""What becomes of a GPU that is gone for good: `forget`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import click

from celery_gpulease.operate.cli.completion import complete_gpu
from celery_gpulease.operate.cli.group import command, known
from celery_gpulease.operate.tables import counted

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger
    from celery_gpulease.ledger.removing import Removed

#: Why it stays, and what to do; {one} is a `Removed`.
REFUSALS: Final = {
    "served": "worker {one.what} serves it. Stop that worker, then forget the GPU; where it is dead already, this "
    "works in {seconds} s",
    "busy": "{one.what} has it, and may still run. Let it end; or `gpulease release {one.gpu} --force` takes the lease "
    "away. Where its worker is dead, its task goes to another GPU within the ttl",
    "leased": "a foreign holder, {one.what}, has its lease. Let it give that back; or `gpulease release {one.gpu} "
    "--force` takes it away",
    "awaited": "{tasks} for it and for no other GPU. `gpulease pending` names them, `gpulease cancel TASK_ID` takes "
    "one back",
}


@command
@click.argument("gpu", shell_complete=complete_gpu)
def forget(ledger: Ledger, gpu: str) -> None:
    """Take GPU, which is gone for good, out of the registry; `status` and the metrics no longer show it."""
    one = ledger.forget(gpu)
    known(ledger, None if one.word == "unknown" else one.gpu, gpu)
    if one.word != "removed":
        raise refusal(one)
    what = f" and its {one.what}" if one.what else ""
    click.echo(
        f"removed GPU {one.gpu}{what}; the journal keeps what happened there. A worker that serves it registers it anew"
    )


def refusal(one: Removed) -> click.ClickException:
    """Why a GPU stays, and who must go first."""
    seconds, tasks = math.ceil(one.number), f"{counted(round(one.number), 'task')} wait{'s' if one.number == 1 else ''}"
    why = REFUSALS[one.word].format(one=one, seconds=seconds, tasks=tasks)
    return click.ClickException(f"GPU {one.gpu} is not removed: {why}")
