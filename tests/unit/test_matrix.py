"""`make matrix` proves what pyproject.toml promises."""

import re
from pathlib import Path

from tests.matrix.interpreters import VERSIONS
from tests.matrix.rows import HIGHEST, LOWEST, ROWS
from tests.matrix.servers import SERVERS

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()


def test_its_lowest_row_is_what_we_say_that_we_need():
    promised = re.findall(r'^    "(celery|redis)>=([\d.]+)', PROJECT, re.MULTILINE)
    assert promised
    for package, version in promised:
        assert re.fullmatch(rf"=={re.escape(version)}(\.0)?", getattr(LOWEST, package))
    assert f'requires-python = ">={LOWEST.python}"' in PROJECT


def test_its_highest_row_has_no_pins():
    assert HIGHEST.pins() == []
    assert HIGHEST.python == VERSIONS[-1]


def test_every_python_and_every_server_has_a_row():
    assert {row.python for row in ROWS.values()} == set(VERSIONS)
    assert {row.server for row in ROWS.values()} == set(SERVERS)
