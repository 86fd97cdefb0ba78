"""Tables for people: rich's on a terminal, where rich is installed; else plain columns, which programs can cut."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import click
from celery.utils.imports import symbol_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

NOTHING = "-"
#: The head of the column with the ids of tasks.
TASK = "TASK"


@dataclass(frozen=True)
class Table:
    """Rows under their heads; None and an empty text are shown as '-'."""

    heads: Sequence[str]
    rows: Sequence[Sequence[object]]

    def lines(self) -> list[tuple[str, ...]]:
        """The cells of the rows, as they are shown."""
        return [tuple(NOTHING if cell in (None, "") else harmless(str(cell)) for cell in row) for row in self.rows]

    def width(self) -> int:
        """Characters of its longest line, as plain text."""
        return max(map(len, columns(self).splitlines()))


class Screen(Protocol):
    """Where tables and sentences are shown."""

    def show(self, *parts: Table | str) -> None:
        """Shows these, one under the other."""

    def live(self) -> AbstractContextManager[Callable[..., None]]:
        """Gives a `show` of which each call takes the place of the one before, where that can be."""


class Plain:
    """Columns of text, without colours."""

    def show(self, *parts: Table | str) -> None:
        """Prints them."""
        for part in parts:
            click.echo(columns(part) if isinstance(part, Table) else harmless(part))

    @contextmanager
    def live(self) -> Iterator[Callable[..., None]]:
        """In a pipe one follows the other, with an empty line between."""

        def show(*parts: Table | str) -> None:
            click.clear()  # does nothing in a pipe
            self.show(*parts)
            if not sys.stdout.isatty():
                click.echo()

        yield show


def screen(*, has_colours: bool = True) -> Screen:
    """What fits the standard output."""
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        return Plain()
    made: Screen = symbol_by_name("celery_gpulease.operate.rich_tables:Rich")(has_colours=has_colours)
    return made


def columns(table: Table) -> str:
    """A table as text."""
    lines = [tuple(table.heads), *table.lines()]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def harmless(text: str) -> str:
    """A text that anybody may have written, as it may be shown on a terminal: nothing in it is an order to that."""
    return "".join(one if one.isprintable() else "?" for one in text)


def counted(number: int, what: str) -> str:
    """A number of things, for people."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def seconds(value: float | None) -> str | None:
    """Seconds for people: the longer, the coarser."""
    if value is None:
        return None
    if value < 60:  # noqa: PLR2004
        return f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def task_of(name: str | None, task_id: str | None) -> str | None:
    """A task for people."""
    return f"{name}[{task_id}]" if task_id else None
