"""Tables by rich: imported only where it is installed, and somebody looks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich import box, table
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from celery_gpulease.operate.tables import TASK, harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from celery_gpulease.operate.tables import Table

#: Words that stand in a cell of their own → how they are shown.
STYLES: Final = {
    "free": "green",
    "leased": "cyan",
    "draining": "yellow",
    "quarantined": "bold red",
    "offline": "red",
    "requeued": "yellow",
    "note": "dim",
    "FOUND": "bold red",
}


class Rich:
    """A terminal.

    Args:
        has_colours: False for none; the variable `NO_COLOR` says the same.
    """

    def __init__(self, *, has_colours: bool) -> None:
        self._console = Console(highlight=False, no_color=None if has_colours else True)

    def show(self, *parts: Table | str) -> None:
        """Prints them."""
        width = self._console.width
        self._console.print(*(rendered(part, width) for part in parts), sep="\n", soft_wrap=False)

    @contextmanager
    def live(self) -> Iterator[Callable[..., None]]:
        """Takes the whole terminal until it ends."""
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            yield lambda *parts: live.update(
                Group(*(rendered(part, self._console.width) for part in parts)), refresh=True
            )


def rendered(part: Table | str, width: int) -> RenderableType:
    """A part as rich shows it. Nothing is markup: a task's id may have brackets.

    Args:
        part: A table, or a sentence.
        width: Of the terminal. Where a table is wider, its columns are folded, but a task's id never is: it is copied.
    """
    if isinstance(part, str):
        return Text(harmless(part))
    shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    lines, wide = part.lines(), part.width() > width
    for head in part.heads:
        shown.add_column(head, overflow="fold", no_wrap=head == TASK)
    for line in lines:
        cells = (_apart(cell) if wide and head == TASK else cell for head, cell in zip(part.heads, line, strict=True))
        shown.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
    return shown


def _apart(cell: str) -> str:
    """A task's id in a line of its own, under its name: `name[id]`."""
    name, bracket, task_id = cell.rstrip("]").rpartition("[")
    return f"{name}\n{task_id}" if bracket else cell
