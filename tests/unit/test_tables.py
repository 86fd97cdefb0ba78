"""Tables for people: on a terminal and elsewhere."""

import re
import sys
from io import StringIO
from itertools import chain
from uuid import uuid4

import pytest
from rich.console import Console

from celery_gpulease.operate.rich_tables import shown as in_colours
from celery_gpulease.operate.tables import NOTHING, Plain, Table, laid_out, screen, seconds

TABLE = Table(("GPU", "TASK"), [("node7:0", "proj.render[bold]"), ("node7:10", None)])


def columns(table):
    """As in a pipe."""
    return "\n".join("  ".join(line).rstrip() for line in laid_out([table]))


def test_columns_are_as_wide_as_their_widest_cell_and_nothing_is_a_dash():
    assert columns(TABLE) == "GPU       TASK\nnode7:0   proj.render[bold]\nnode7:10  -"


TASK_ID = str(uuid4())
LONG_NAME = f"project.tasks.train_model[{TASK_ID}]"
WHY = "every GPU of pool 'default' is leased or offline or drained by order"
COMMAND = f"run: python train.py --data /data/imagenet/2026 --epochs 90 --lr 0.1[{TASK_ID.replace('-', '')}]"
STATUS = Table(
    ("GPU", "UUID", "POOLS", "STATE", "TASK", "HELD", "REASON"),
    [
        ("gpunode7:0", f"GPU-{TASK_ID}", "default,a100", "leased", LONG_NAME, "35.6s", None),
        ("gpunode7:1", None, "default", "quarantined", None, None, WHY),
        ("gpunode7:2", None, "default", "leased", COMMAND, "4.1s", None),
    ],
    leave=("TASK", "UUID", "REASON", "POOLS"),
)


def shown(*parts, width):
    console = Console(width=width, file=StringIO())
    console.print(in_colours(parts, width), soft_wrap=True)
    return console.file.getvalue()


def test_a_task_is_no_markup_and_a_table_that_fits_is_shown_as_columns():
    assert shown(TABLE, width=30) == columns(TABLE) + "\n"


@pytest.mark.parametrize("width", range(50, 200, 5))
def test_however_narrow_a_terminal_is_every_line_fits_and_no_word_is_broken(width):
    lines = shown(STATUS, WHY, width=width).splitlines()
    assert max(map(len, lines)) <= width
    words = re.split(r"[\s\[\]]+", " ".join(lines))
    assert {TASK_ID, TASK_ID.replace("-", ""), "project.tasks.train_model", "quarantined", "35.6s", *WHY.split()} <= {
        *words
    }
    said = ("pools:", "columns left out: UUID; a pipe has all")
    whole = " ".join(map(str, chain(STATUS.heads, *STATUS.rows, said, [WHY, NOTHING])))
    assert set(words) <= set(re.split(r"[\s\[\]]+", whole)), "a part of a word"


def test_in_eighty_columns_what_has_no_place_beside_a_row_stands_under_it():
    assert (
        shown(STATUS, width=80)
        == f"""\
GPU         POOLS         STATE        HELD   REASON
gpunode7:0  default,a100  leased       35.6s  -
  {LONG_NAME}
gpunode7:1  default       quarantined  -      every GPU of pool 'default' is
                                              leased or offline or drained by
                                              order
gpunode7:2  default       leased       4.1s   -
  run: python train.py --data /data/imagenet/2026 --epochs 90 --lr 0.1
  {TASK_ID.replace("-", "")}
columns left out: UUID; a pipe has all
"""
    )


def test_where_a_gpu_has_a_long_name_its_pools_and_reason_stay_and_columns_that_are_left_out_are_named():
    gpu = "ip-10-0-12-123.eu-central-1.compute.internal:0"
    row = (gpu, "default", "leased", LONG_NAME, "35.6s", "20s", "w", WHY)
    table = Table(
        ("GPU", "POOLS", "STATE", "TASK", "HELD", "TTL", "WORKER", "REASON"),
        [row],
        leave=("TASK", "REASON", "WORKER", "TTL", "POOLS", "HELD"),
    )
    told = shown(table, width=60)
    assert told.endswith("\ncolumns left out: HELD, TTL, WORKER; a pipe has all\n")
    assert "  pools: default\n" in told
    assert WHY in " ".join(told.split())
    assert "left out" not in shown(table, width=400) + columns(table)


def test_without_rich_a_terminal_gets_the_same_layout(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    Plain().show(STATUS, "", WHY)
    assert capsys.readouterr().out == shown(STATUS, "", WHY, width=80)


def test_what_is_watched_on_too_low_a_terminal_says_how_much_is_missing():
    lines = in_colours((STATUS, WHY), 80, 5).plain.splitlines()
    assert (len(lines), lines[-1]) == (5, "… and 7 more lines, for which the terminal is too low")


def test_nothing_in_a_cell_or_a_sentence_is_an_order_to_the_terminal(capsys):
    Plain().show("a\x1b[2Jb", Table(("TASK",), [("c\x9bd\u202e\n",)]))
    assert capsys.readouterr().out == "a?[2Jb\nTASK\nc?d??\n"
    console = Console(width=80, file=StringIO())
    console.print(in_colours(("a\x1b[2Jb", Table(("TASK",), [("c\x9bd",)])), 80))
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


def test_a_sentence_is_folded_as_far_in_as_it_begins():
    assert list(laid_out(["  cure: start a worker"], 15)) == [("  cure: start a",), ("  worker",)]


def test_a_cell_of_spaces_is_shown_however_many_they_are():
    assert len(list(laid_out([Table(("A", "REASON"), [("a", " " * 99)], leave=("REASON",))], 20))) == 2
