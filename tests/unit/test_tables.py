"""Tables for people: on a terminal and elsewhere."""

import sys
from io import StringIO
from uuid import uuid4

import pytest
from rich.console import Console

from celery_gpulease.operate.rich_tables import rendered
from celery_gpulease.operate.tables import Plain, Table, columns, screen, seconds

TABLE = Table(("GPU", "TASK"), [("node7:0", "proj.render[bold]"), ("node7:10", None)])


def test_columns_are_as_wide_as_their_widest_cell_and_nothing_is_a_dash():
    assert columns(TABLE) == "GPU       TASK\nnode7:0   proj.render[bold]\nnode7:10  -"


def test_a_task_is_no_markup_and_nothing_is_cut_off():
    console = Console(width=24, file=StringIO())
    console.print(rendered(TABLE, 30))
    shown = console.file.getvalue().rpartition("─")[2]
    assert sorted("".join(shown.split())) == sorted("node7:0proj.render[bold]node7:10-")


def test_where_a_table_is_too_wide_other_columns_are_folded_and_a_tasks_id_never_is():
    task_id, heads = str(uuid4()), ("GPU", "POOLS", "STATE", "TASK", "HELD", "TTL", "WORKER", "REASON")
    row = (
        "node7:0",
        "default,a100",
        "leased",
        f"proj.render[{task_id}]",
        "4.1s",
        "27.3s",
        "gpu0@node7",
        "why it is " * 5,
    )
    for table in (
        Table(heads, [row]),
        Table(("TIME", "TASK", ""), [("2026-11-30 23:59:59", task_id, "as it is " * 9)]),
    ):
        console = Console(width=80, file=StringIO())
        console.print(rendered(table, 80))
        lines = console.file.getvalue().splitlines()
        assert any(task_id in line for line in lines)
        assert max(map(len, lines)) <= 80


def test_nothing_in_a_cell_or_a_sentence_is_an_order_to_the_terminal(capsys):
    Plain().show("a\x1b[2Jb", Table(("TASK",), [("c\x9bd\u202e\n",)]))
    assert capsys.readouterr().out == "a?[2Jb\nTASK\nc?d??\n"
    console = Console(width=80, file=StringIO())
    console.print(rendered("a\x1b[2Jb", 80), rendered(Table(("TASK",), [("c\x9bd",)]), 80))
    assert "\x1b" not in console.file.getvalue()
    assert "c?d" in console.file.getvalue()


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
