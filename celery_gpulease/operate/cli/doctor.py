"""`doctor`: what could go wrong."""

from __future__ import annotations

from dataclasses import asdict

import click

from celery_gpulease.operate.cli.group import as_json, gpulease, print_json, this_screen
from celery_gpulease.operate.doctor import OF_REDIS, OF_SETTINGS, examine
from celery_gpulease.operate.tables import counted


@gpulease.command
@as_json
@click.pass_context
def doctor(context: click.Context, /, *, is_json: bool) -> None:
    """Ask Redis and the configuration what could go wrong. Exit code 1 if something would.

    Each finding comes with its cure; what is only good to know is a note, and makes no difference to the exit code.
    What can be tried out is: on keys of its own, which are gone afterwards. Nothing is changed.
    """
    found, show = [], this_screen().show
    for check, one in examine(context.obj.app):
        found.append({"check": check, **asdict(one)})
        if not is_json:
            show(f"{'note' if one.is_note else 'FOUND'}  {check}: {one.what}")
            if one.cure:
                show(f"       cure: {one.cure}")
    number = sum(not one["is_note"] for one in found)
    if is_json:
        print_json(found)
    else:
        click.echo(f"{counted(number, 'finding') if number else 'nothing found'} in {_checks()} checks")
    context.exit(1 if number else 0)


def _checks() -> int:
    return len(OF_SETTINGS) + len(OF_REDIS)
