"""Tables for people: as wide as a terminal, coloured where rich is installed; else columns, which programs can cut."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Final, Protocol

import click
from celery.utils.imports import symbol_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

NOTHING: Final = "-"
#: Between two columns, and before what stands under a row.
GAP: Final = "  "
#: Heads of columns that stand under a row where there is no place beside it, and what is said before each:
#: most speak for themselves.
UNDER: Final = {"TASK": "", "GPU": "", "REASON": "", "MEANING": "", "POOLS": "pools: "}
#: Characters below which a sentence is not folded into a column.
NARROWEST: Final = 30


@dataclass(frozen=True)
class Table:
    """Rows under their heads; None and an empty text are shown as '-'.

    Where a terminal is too narrow, the last column is folded between words; then those that `leave` names go, in that
    order, as many as must: to lines of their own under each row those of `UNDER`; the others are named under the table.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    leave: Sequence[str] = ()

    def cells(self) -> list[tuple[str, ...]]:
        """The cells of the rows, as they are shown."""
        return [tuple(NOTHING if cell in (None, "") else harmless(str(cell)) for cell in row) for row in self.rows]


class Screen(Protocol):
    """Where tables and sentences are shown."""

    def show(self, *parts: Table | str) -> None:
        """Shows these, one under the other."""

    def live(self) -> AbstractContextManager[Callable[..., None]]:
        """Gives a `show` of which each call takes the place of the one before, where that can be."""


class Plain:
    """Columns of text, without colours; on a terminal they fit its width."""

    def show(self, *parts: Table | str) -> None:
        """Prints them."""
        width = get_terminal_size().columns if sys.stdout.isatty() else None
        for line in laid_out(parts, width):
            click.echo(GAP.join(line).rstrip())

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


def laid_out(parts: Iterable[Table | str], width: int | None = None) -> Iterator[tuple[str, ...]]:
    """The lines of tables and sentences: each its cells, which `GAP` parts. No word is broken, however narrow.

    Args:
        parts: What is shown.
        width: Of the terminal, in characters; None for whatever is needed.
    """
    for part in parts:
        if isinstance(part, Table):
            yield from _rows(part, width)
        else:
            yield from ((line,) for line in _folded(harmless(part), width))


def _rows(table: Table, width: int | None) -> Iterator[tuple[str, ...]]:
    heads, cells = tuple(table.heads), table.cells()
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    beside = _beside(table, widths, width)
    under = [at for at, head in enumerate(heads) if at not in beside and head in UNDER]
    left_out = [head for at, head in enumerate(heads) if at not in beside and head not in UNDER]
    if width is not None and beside and beside[-1] == len(widths) - 1:
        widths[-1] = min(widths[-1], width - _width([widths[at] for at in beside[:-1]]) - len(GAP))
    beside_widths = [widths[at] for at in beside]
    yield from _columns([heads[at] for at in beside], beside_widths)
    for row in cells:
        yield from _columns([row[at] for at in beside], beside_widths)
        cells_under = [UNDER[heads[at]] + row[at] for at in under if row[at] != NOTHING]
        yield from ((GAP + line,) for line in _under(cells_under, width))
    if left_out:
        yield from ((line,) for line in _folded(f"columns left out: {', '.join(left_out)}; a pipe has all", width))


def _columns(cells: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """The lines of one row: a cell that is wider than its column is folded."""
    for line in zip_longest(*map(_folded, cells, widths), fillvalue=""):
        yield tuple(map(str.ljust, line, widths))


def _beside(table: Table, widths: Sequence[int], width: int | None) -> list[int]:
    """The numbers of the columns that stand beside each other."""
    beside, last = list(range(len(widths))), len(widths) - 1
    leaving = [table.heads.index(head) for head in table.leave]
    while width is not None and leaving:
        if _width([min(widths[at], NARROWEST) if at == last else widths[at] for at in beside]) <= width:
            break
        beside.remove(leaving.pop(0))
    return beside


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _under(cells: Iterable[str], width: int | None) -> Iterator[str]:
    """What stands under a row: as many cells in a line as there is place for."""
    most, line = (width or 0) - len(GAP), ""
    for cell in cells:
        if line and len(line) + len(GAP) + len(cell) <= most:
            line += GAP + cell
            continue
        if line:
            yield line
        *first, line = _cell_folded(cell, most)
        yield from first
    if line:
        yield line


def _cell_folded(cell: str, width: int) -> list[str]:
    """A cell in lines; a task's id, as `task_of` has it, whole in one of its own: it is copied."""
    name, bracket, task_id = cell.removesuffix("]").rpartition("[")
    is_task = bracket and cell.endswith("]") and " " not in task_id
    return [*_folded(name, width), task_id] if is_task and len(cell) > width else _folded(cell, width)


def _folded(text: str, width: int | None) -> list[str]:
    """A text in lines, each as far in as the first; a word that is longer than a line stays whole."""
    if width is None or len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip(" ")))
    folded = wrap(text, max(1, width), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return folded or [""]  # there were only spaces


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
    return f"{name}[{task_id}]" if name and task_id else task_id
