"""Tables by rich: imported only where it is installed, and somebody looks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich import box, table
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

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
        self._console.print(*map(rendered, parts), sep="\n", soft_wrap=False)

    @contextmanager
    def live(self) -> Iterator[Callable[..., None]]:
        """Takes the whole terminal until it ends."""
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            yield lambda *parts: live.update(Group(*map(rendered, parts)), refresh=True)


def rendered(part: Table | str) -> RenderableType:
    """A part as rich shows it. Nothing is markup: a task's id may have brackets."""
    if isinstance(part, str):
        return Text(part)
    shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in part.heads:
        shown.add_column(head, overflow="fold")
    for line in part.lines():
        shown.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in line))
    return shown
