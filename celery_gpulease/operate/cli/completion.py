"""Completion in the shell, of what Redis knows: `eval "$(_CELERY_COMPLETE=bash_source celery)"` switches it on."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from celery.app.utils import find_app

from celery_gpulease.installed import installation
from celery_gpulease.ledger.views import gpu_names, gpu_rows, pending_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

    from celery_gpulease.ledger import Ledger

#: Tasks that are offered: nobody reads more.
MOST: Final = 100


def complete_gpu(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The ids of the registered GPUs."""
    return _beginning(incomplete, _asked(context, gpu_names))


def complete_task(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The ids of the tasks that run, or wait first."""
    return _beginning(incomplete, _asked(context, _task_ids))


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _task_ids(ledger: Ledger) -> Iterator[str]:
    gpus = gpu_rows(ledger)
    yield from (gpu.task_id for gpu in gpus if gpu.task_id)
    yield from (row.task_id for row in islice(pending_rows(ledger, gpus), MOST))


def _asked(context: click.Context, ask: Any) -> list[str]:
    app = context.find_root().params.get("app")
    try:
        return list(ask(installation(find_app(app) if isinstance(app, str) else app).ledger))
    except Exception:  # noqa: BLE001  # the line that somebody types at has no place for an error; the command tells it
        return []
