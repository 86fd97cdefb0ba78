"""Tables for people: on a terminal and elsewhere."""

import sys
from io import StringIO

import pytest
from rich.console import Console

from celery_gpulease.operate.rich_tables import rendered
from celery_gpulease.operate.tables import Plain, Table, columns, screen, seconds

TABLE = Table(("GPU", "TASK"), [("node7:0", "proj.render[bold]"), ("node7:10", None)])


def test_columns_are_as_wide_as_their_widest_cell_and_nothing_is_a_dash():
    assert columns(TABLE) == "GPU       TASK\nnode7:0   proj.render[bold]\nnode7:10  -"


def test_a_task_is_no_markup_and_nothing_is_cut_off():
    console = Console(width=24, file=StringIO())
    console.print(rendered(TABLE))
    shown = console.file.getvalue().rpartition("─")[2]
    assert sorted("".join(shown.split())) == sorted("node7:0proj.render[bold]node7:10-")


def test_what_is_no_terminal_gets_plain_columns():
    assert isinstance(screen(), Plain)


def test_without_rich_a_terminal_gets_them_too(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert not isinstance(screen(), Plain)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert isinstance(screen(), Plain)


@pytest.mark.parametrize(
    ("value", "shown"), [(None, None), (0.04, "0.0s"), (59.9, "59.9s"), (61.2, "1m01s"), (7260, "2h01m")]
)
def test_seconds_are_the_coarser_the_longer(value, shown):
    assert seconds(value) == shown
