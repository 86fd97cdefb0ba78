"""What happened: `why` tells the story of one task, `journal` that of all."""

from __future__ import annotations

import time
from dataclasses import asdict
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

import click

from celery_gpulease.ledger.census import gpu_called
from celery_gpulease.ledger.journal import entries_backward
from celery_gpulease.ledger.story import story_of, whereabouts
from celery_gpulease.ledger.views import gpu_rows
from celery_gpulease.operate import stories
from celery_gpulease.operate.cli.completion import complete_gpu, complete_task
from celery_gpulease.operate.cli.group import (
    Finite,
    as_json,
    command,
    known,
    not_empty,
    print_json,
    this_app,
    this_screen,
)
from celery_gpulease.operate.tables import Table, counted

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger
    from celery_gpulease.ledger.journal import Entry

HOUR: Final = 3600


@command
@click.argument("task_id", shell_complete=complete_task, callback=not_empty)
@as_json
def why(ledger: Ledger, task_id: str, *, is_json: bool) -> None:
    """Tell where the task TASK_ID is now, and what happened to it.

    The journal remembers about the last ten thousand events of all tasks.
    """
    story, now = story_of(ledger, task_id), whereabouts(ledger, task_id)
    end = stories.end_of(this_app(), task_id)
    if not (story or now or end.is_stored):
        message = f"no task {task_id} is known: it was never held here, or that is longer ago than the journal tells"
        raise click.ClickException(message + (f" ({end.trouble})" if end.trouble else ""))
    sentences = stories.sentences(task_id, story, now, end, gpu_rows(ledger))
    if is_json:
        told = {"task_id": task_id, "summary": sentences, "state": end.state, "error": end.error or None}
        print_json({**told, "now": list(map(asdict, now)), "story": list(map(asdict, story))})
        return
    scheduled = {one.ticket for one in now if one.state == "scheduled"}
    rows = [(at, what, gpu, meaning) for at, what, gpu, _, meaning in stories.rows(story, story, scheduled)]
    table = Table(("TIME", "WHAT", "GPU", "MEANING"), rows, leave=("MEANING", "GPU"))
    this_screen().show(*sentences, *(("", table) if story else ()))


@command
@as_json
@click.option("--trouble", is_flag=True, help="Only what did not go its usual way: deaths, quarantines, corrections …")
@click.option("--gpu", help="Only of this GPU.", shell_complete=complete_gpu)
@click.option("--hours", type=Finite(0), help="Only of the last so many hours.")
@click.option("-n", "--number", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
def journal(ledger: Ledger, *, is_json: bool, trouble: bool, gpu: str | None, hours: float | None, number: int) -> None:
    """Tell what happened lately, to all tasks and GPUs, the last at the end.

    The journal remembers about the last ten thousand events; it says where it begins.
    """
    since = time.time() - hours * HOUR if hours is not None else 0.0
    entries = list(entries_backward(ledger))
    there = _there(ledger, gpu, entries) if gpu else ""
    chosen = (one for one in entries if (stories.is_trouble(one) or not trouble) and there in ("", one.gpu))
    found = list(islice(takewhile(lambda one: one.at >= since, chosen), number))[::-1]
    if is_json:
        print_json([asdict(one) for one in found])
    elif not found:
        click.echo(f"the journal tells of no{' trouble' if trouble else 'thing'}{_beginning(entries)}")
    else:
        heads, rows = ("TIME", "WHAT", "GPU", "TASK", "MEANING"), stories.rows(found, entries[::-1])
        last = f"the last {counted(len(found), 'event')}{_beginning(entries)}"
        this_screen().show(Table(heads, rows, leave=("TASK", "MEANING", "GPU")), "", last)


def _there(ledger: Ledger, gpu: str, entries: list[Entry]) -> str:
    """The id of a GPU, which may be forgotten, as long as the journal tells of it."""
    called = gpu_called(ledger, gpu)
    is_told_of = called is None and any(one.gpu == gpu for one in entries)
    return gpu if is_told_of else known(ledger, called, gpu)


def _beginning(entries: list[Entry]) -> str:
    return f"; the journal begins on {stories.moment(entries[-1].at)}" if entries else ""
