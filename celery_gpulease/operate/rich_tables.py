"""Colours, and a screen that changes in place, by rich: imported only where it is installed, and somebody looks."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from celery_gpulease.operate.tables import GAP, Table, laid_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Words that stand in a cell of their own → how they are shown.
STYLES: Final = {
    "free": "green",
    "leased": "cyan",
    "draining": "yellow",
    "quarantined": "bold red",
    "offline": "red",
    "requeued": "yellow",
}
HEADS: Final = "bold"


class Rich:
    """A terminal.

    Args:
        has_colours: False for none; the variable `NO_COLOR` says the same.
    """

    def __init__(self, *, has_colours: bool) -> None:
        is_plain = not has_colours or os.environ.get("NO_COLOR")
        self._console = Console(highlight=False, color_system=None if is_plain else "auto")

    def show(self, *parts: Table | str) -> None:
        """Prints them."""
        self._console.print(shown(parts, self._console.width), soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[Callable[..., None]]:
        """Takes the whole terminal until it ends."""
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            yield lambda *parts: live.update(shown(parts, self._console.width, self._console.height), refresh=True)


def shown(parts: tuple[Table | str, ...], width: int, height: int | None = None) -> Text:
    """The lines as rich shows them. Nothing is markup: a task's id may have brackets.

    Args:
        parts: What is shown.
        width: Of the terminal.
        height: Of the terminal, where what does not fit is only counted.
    """
    lines = [
        _coloured(line, HEADS if number == 0 and isinstance(part, Table) else "")
        for part in parts
        for number, line in enumerate(laid_out([part], width))
    ]
    if height is not None and len(lines) > height:
        lines[height - 1 :] = [Text(f"… and {len(lines) - height + 1} more lines, for which the terminal is too low")]
    return Text("\n", no_wrap=True, overflow="ignore").join(lines)


def _coloured(line: tuple[str, ...], style: str) -> Text:
    cells = (Text(cell, style or STYLES.get(cell.strip(), "")) for cell in line)
    whole = Text(GAP).join(cells)
    whole.rstrip()
    return whole
