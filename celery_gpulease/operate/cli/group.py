"""The group of sub-commands, and what they share."""

from __future__ import annotations

import json
import math
import sys
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from celery_gpulease.exceptions import GPULeaseError, LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.ledger.connection import WrongType
from celery_gpulease.ledger.types import cure, in_words, wrong_keys
from celery_gpulease.ledger.views import gpu_rows
from celery_gpulease.operate.tables import harmless, screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.operate.tables import Screen

#: GPUs that an error offers.
SUGGESTED: Final = 3

as_json = click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")


@click.group(
    epilog="A GPU is named <host>:<index>, such as node7:0, or by its UUID. Where to begin: `gpulease status` says "
    "what runs where, `gpulease pending` who waits and why, `gpulease why TASK_ID` what happened to one task, "
    "`gpulease journal --trouble` what went wrong lately, and `gpulease doctor` what could go wrong."
)
def gpulease() -> None:
    """See and steer the GPUs, their leases, and the tasks that wait for them."""


def command(run: Callable[..., None]) -> click.Command:
    """A sub-command: its first argument is the ledger of the app; our errors are told without a traceback."""

    @click.pass_context
    @wraps(run)
    def with_ledger(context: click.Context, /, *args: Any, **options: Any) -> None:
        try:
            ledger = installation(context.obj.app).ledger
            with suppress(LedgerUnavailable):  # what the command itself says of that is better
                ledger.look()
            with _wrong_keys_named(ledger):
                run(ledger, *args, **options)
        except GPULeaseError as error:
            raise click.ClickException(harmless(f"{type(error).__name__}: {error}")) from error

    return gpulease.command(run.__name__)(with_ledger)


@contextmanager
def _wrong_keys_named(ledger: Ledger) -> Iterator[None]:
    """A key of another type than ours is named, with the cure, where it can be found."""
    try:
        yield
    except WrongType as error:
        if not (wrong := wrong_keys(ledger)):
            raise
        raise click.ClickException(f"{in_words(wrong)}; {cure(wrong)}") from error


class Finite(click.FloatRange):
    """Seconds, or hours: no `nan`, nor `inf`, which click takes for numbers in any range."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """The number."""
        number = super().convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"{value} is no number that can be waited for", parameter, context)
        return number


def this_app() -> Any:
    """The app that `-A` names."""
    return click.get_current_context().obj.app


def this_screen() -> Screen:
    """Where tables are shown; `celery --no-color` and `-C` are heard."""
    return screen(has_colours=not getattr(click.get_current_context().obj, "no_color", False))


def known(ledger: Ledger, gpu: str | None, name: str) -> str:
    """The id of a GPU; where the ledger does not know it, an error for people."""
    if gpu is None:
        message = f"no GPU {name!r} is registered; `gpulease status` lists them{_meant(ledger, name)}"
        raise click.ClickException(message)
    return gpu


def _meant(ledger: Ledger, name: str) -> str:
    """`worker --gpu 0` calls a GPU by its index, which several hosts may have."""
    its = [gpu.name for gpu in gpu_rows(ledger) if str(gpu.index) == name][:SUGGESTED]
    return f". Did you mean {' or '.join(its)}?" if its else ""


def not_empty(_: click.Context, __: click.Parameter, value: str) -> str:
    """For an argument that a shell's variable may have left empty."""
    if not value:
        message = "it is empty"
        raise click.BadParameter(message)
    return value


def print_json(value: object) -> None:
    """Prints one JSON value."""
    json.dump(value, sys.stdout, indent=2)
    click.echo()
