"""README promises what is true: its code, its settings, its commands; and so do the other pages."""

import ast
import math
import re
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from celery import Celery

from celery_gpulease import testing
from celery_gpulease.operate import measures as exporters
from celery_gpulease.operate.cli import gpulease
from celery_gpulease.operate.cli.running import TIMED_OUT
from celery_gpulease.programs import running
from celery_gpulease.sending.router import ROUTED_POOL
from celery_gpulease.settings import PREFIX, read_settings
from celery_gpulease.tally import Measure
from celery_gpulease.worker import measures as workers
from tests.pages import PAGES, README, ROOT, Block, all_blocks, blocks_in, blocks_of, read

TEXT = read(README)
BLOCKS = all_blocks()

URL = "redis://localhost:6379/0"


def named(block: Block) -> str:
    """For a test's name."""
    return f"{block.page}: {block.section}"


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


# -- its code ----------------------------------------------------------------------------------------------------------


def asked_for() -> set[tuple[str, ...]]:
    """The sections of pages, and the examples, whose blocks some test asks for: it calls `blocks_of("…")`."""
    found = set()
    for path in ROOT.glob("tests/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                words = tuple(one.value for one in node.args if isinstance(one, ast.Constant))
                found.add((node.func.id, *words))
    return found


def place(block: Block) -> tuple[str, ...]:
    """As a test asks for it."""
    if block.page.startswith("examples/"):
        return "commands_of", Path(block.page).parent.name
    return ("blocks_of", block.section) if block.page == README else ("blocks_of", block.section, block.page)


def test_every_block_is_run_by_a_test():
    asked = asked_for()
    forgotten = {named(block) for block in BLOCKS if place(block) not in asked}
    assert not forgotten, "a test must run these: tests/pages.py says how it gets them"


def test_every_block_is_of_a_kind_that_is_run():
    assert {block.language for block in BLOCKS} <= {"python", "sh", "console", "acl", "ini"}
    for path in PAGES:
        odd = re.findall(r"^(?: +```|~~~|<pre|    \S).*", without_blocks(path.read_text()), re.MULTILINE)
        assert not odd, f"{path.name}: code in another form than between ``` at the margin is seen by no test"


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", of("python"), ids=named)
def test_its_code_compiles(block):
    compile(block.text, block.page, "exec")


@pytest.mark.parametrize("block", of("sh"), ids=named)
def test_its_commands_are_those_of_a_shell(block):
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_sender_by_name_holds_what_its_router_names():
    (sender,) = blocks_of("Senders by name", "docs/using.md")
    names = {"__name__": "readme"}
    exec(compile(sender.text, sender.page, "exec"), names)
    (router,) = names["sender"].conf.task_routes
    assert router("render.scene") == {ROUTED_POOL: "a100"}
    assert names["sender"].gpulease.settings.redis_url == URL


def test_the_targets_and_variables_of_make_that_it_names_exist():
    makefile = read("Makefile")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    try_it, _ = blocks_of("celery_gpulease")
    (targets_of_tests,) = blocks_of("Development", "docs/contributing.md")
    in_blocks = [*try_it.commands, *targets_of_tests.commands]
    assert {command[0] for command in in_blocks} == {"make"}
    inline = re.findall(r"\bmake ([a-z-]+)", "\n".join(re.findall(r"`([^`]*)`", "".join(map(read, map(str, PAGES))))))
    assert {"demo", "test"} <= {command[1] for command in in_blocks} | set(inline) <= targets
    for variable in re.findall(r"\b([A-Z]+)=\w", targets_of_tests.text):
        assert f"$({variable})" in makefile or f"$(or $({variable})" in makefile or f"$(if $({variable})" in makefile


def test_the_extras_that_it_installs_exist():
    there = set(re.findall(r"^(\w+) = \[$", read("pyproject.toml"), re.MULTILINE))
    installed = set(re.findall(r"pip install '(?:\.|celery-gpulease)\[(\w+)\]'", "".join(map(read, map(str, PAGES)))))
    assert {"demo", "nvml", "prometheus"} <= installed <= there


# -- its tables --------------------------------------------------------------------------------------------------------


def settings_table() -> dict[str, str]:
    return dict(re.findall(rf"^\| `({PREFIX}\w+)` \| (.*?) \| ", TEXT, re.MULTILINE))


def meant_by(default: str) -> object:
    """The value that a cell of the column `default` stands for."""
    words = {"the broker's": URL, "ttl / 3": 10.0, "the host's name": socket.gethostname()}
    return words[default] if default in words else ast.literal_eval(default.strip("`"))


def test_its_settings_are_those_that_exist_with_their_defaults(monkeypatch):
    monkeypatch.delenv("GPULEASE_HOST", raising=False)
    real = asdict(read_settings(Celery(broker=URL).conf))
    assert {name: meant_by(default) for name, default in settings_table().items()} == {
        PREFIX + name: value for name, value in real.items()
    }


#: For Celery's own `control`, which knows all commands of all packages by one name.
CONTROL_COMMANDS = {"gpulease_drain", "gpulease_undrain"}


def measured() -> set[str]:
    return {one.name for table in (exporters, workers) for one in vars(table).values() if isinstance(one, Measure)}


def test_its_metrics_are_those_that_exist():
    settings = {"gpulease_metrics_port"}
    assert set(re.findall(r"\bgpulease_\w+", read("docs/metrics.md"))) - settings == measured()


def test_it_names_no_setting_that_does_not_exist():
    for page in map(str, PAGES):
        words = set(re.findall(rf"\b{PREFIX}[a-z_]+\b", read(page))) - CONTROL_COMMANDS - measured()
        assert words <= settings_table().keys(), page


def test_the_commands_that_it_promises_exist():
    for page in map(str, PAGES):
        assert set(re.findall(r"\bgpulease ([a-z]+)\b", read(page))) <= gpulease.commands.keys(), page


def test_its_table_of_commands_has_all_of_them_with_their_options():
    promised = defaultdict(set)
    for name, usage in re.findall(r"^\| `celery -A proj gpulease ([a-z]+)([^`]*)`", TEXT, re.MULTILINE):
        promised[name] |= set(re.findall(r"(?<![\w-])--?[a-z]+(?:-[a-z]+)*", usage))
    assert promised.keys() == gpulease.commands.keys()
    for name, command in gpulease.commands.items():
        options = [set(one.opts) for one in command.params if one.param_type_name == "option"]
        assert promised[name] <= set().union(*options), name
        assert all(option & promised[name] for option in options if "--yes" not in option), name


def test_the_exit_codes_and_signals_of_run_are_those_that_it_names():
    page = read("docs/using.md").replace("\n", " ")
    assert f"({TIMED_OUT}: its turn did not come" in page
    assert f"{running.NOT_RUNNABLE}, {running.NOT_FOUND}: it cannot be started" in page
    assert f"{running.SIGNALLED + signal.SIGINT}: Ctrl-C" in page
    assert f"(exit code {running.SIGNALLED + signal.SIGKILL})" in page
    (passed_on,) = re.findall(r"and ((?:[A-Z0-9]+, )+[A-Z0-9]+) to the program's process group", page)
    terminals_own = {signal.SIGWINCH, signal.SIGTSTP}
    assert {signal.Signals["SIG" + name] for name in passed_on.split(", ")} == set(running.PASSED_ON) - terminals_own


def test_the_fixtures_for_users_tests_are_those_that_exist():
    promised = set(re.findall(r"^\| `(gpu_\w+)` \|", read("docs/testing.md"), re.MULTILINE))
    source = ast.parse(Path(testing.__file__).read_text())
    fixtures = {
        one.name
        for one in ast.walk(source)
        if isinstance(one, ast.FunctionDef) and any("fixture" in ast.unparse(how) for how in one.decorator_list)
    }
    assert promised == {name for name in fixtures if not name.startswith("_")}
    assert {testing.APP_INI, testing.URL_INI, testing.URL_VARIABLE} <= set(re.findall(r"\w+", read("docs/testing.md")))


def test_the_oldest_versions_that_it_names_are_those_that_it_asks_for():
    project = read("pyproject.toml")
    for name, pattern in {"Python": r'requires-python = ">=([\d.]+)"', "Celery": r'"celery>=([\d.]+)"'}.items():
        (oldest,) = re.findall(pattern, project)
        assert f"{name} ≥ {oldest}" in TEXT
        assert f"| {name} | {oldest}" in read("docs/deploying.md")
    (oldest,) = re.findall(r'"redis>=([\d.]+)"', project)
    assert f"| redis-py | {oldest} |" in read("docs/deploying.md")


def short(section: str) -> str:
    """What README says under a heading."""
    return re.search(rf"^## {section}\n(.*?)^## ", TEXT, re.DOTALL | re.MULTILINE)[1]


def test_what_its_short_table_says_is_in_the_long_one():
    rows = re.findall(r"^\| .*\|$", short("Performance"), re.MULTILINE)
    assert set(rows) <= set(read("docs/performance.md").splitlines())
    assert rows


def test_the_ttls_that_it_names_are_those_of_the_long_table():
    table = re.findall(r"^\| jobs \| ttl \|\n\|[-|]+\n((?:\|.*\n)+)", read("docs/ttl.md"), re.MULTILINE)[0]
    ttls = [re.match(r"[\d to]+ s", row(line)[1])[0] for line in table.splitlines()]
    assert len(ttls) == 3
    assert all(ttl in short("Choosing the ttl").replace("\n", " ") for ttl in ttls)


def test_the_commands_of_an_operators_questions_are_those_that_the_long_page_shows():
    asked = re.findall(r"^\| (.+\?) \| `(.+)` \|$", short("Operating"), re.MULTILINE)
    page = read("docs/operating.md")
    assert len(asked) == len(blocks_of("Operating", "docs/operating.md"))
    for question, command in asked:
        assert f"**{question}**" in page
        assert f"$ {command.removesuffix(' TASK_ID')}" in page


def row(cells: str) -> list[str]:
    return [cell.strip() for cell in cells.strip("|").split("|")]


def seconds(text: str) -> float:
    """A time in a cell, such as 5.4 min."""
    number, unit = text.split()
    return float(number) * {"s": 1, "min": 60, "h": 3600}[unit]


def test_what_a_death_costs_is_reckoned_right():
    head, _, *rows = (
        re.search(r"^\| jobs \| R \|.*?\n\n", read("docs/ttl.md"), re.DOTALL | re.MULTILINE)[0].strip().splitlines()
    )
    ttls = [float(re.search(r"\d+", cell)[0]) for cell in row(head)[2:]]
    assert len(rows) == 5
    for jobs, lost, *losses in map(row, rows):
        for ttl, cell in zip(ttls, losses, strict=True):
            total, part = cell.split(", ")
            wait = 5 / 6 * ttl
            unit = {"s": 1, "min": 60, "h": 3600}[total.split()[1]]
            digits = len(total.split()[0].partition(".")[2])
            exact = seconds(lost) + wait
            assert abs(seconds(total) - exact) <= unit * 0.51 * 10**-digits, jobs
            assert part == f"{100 * wait / exact:.0f} %", jobs
    assert "| 128 min |" in read("docs/ttl.md")
    assert round(10 / 2 * math.exp(1.8**2)) == 128, "the mean of L² is that of L, squared, by exp(sigma²)"


# -- its links and pictures --------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)", without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_its_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https:)([^)]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        other = (page.parent / name) if name else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other.read_text()), target


def test_each_page_is_linked_from_readme():
    linked = {README, *(target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", TEXT))}
    assert {str(path.relative_to(ROOT)) for path in PAGES} <= linked


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_its_lines_fit_a_screen(page):
    lines = without_blocks(page.read_text()).splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith(("|", "!["))] == []
    broken = [line for line in lines if line.count("`") % 2]
    assert broken == [], "code is copied from one line"


def test_its_picture_is_what_its_script_draws(tmp_path):
    drawing = ROOT / "docs" / "journey.py"
    (tmp_path / "journey.py").write_text(drawing.read_text())
    subprocess.run([sys.executable, "journey.py"], cwd=tmp_path, check=True)
    picture = (ROOT / "docs" / "journey.svg").read_text()
    assert (tmp_path / "journey.svg").read_text() == picture, "run: python docs/journey.py"
    words = " ".join(ET.fromstring(picture).itertext())
    steps = re.findall(r"^(\d)\. \*\*([A-Z]+)\.?\*\*", TEXT, re.MULTILINE)
    assert len(steps) == 7
    assert all(f"{number} {name}" in words for number, name in steps), "the steps below it are its own"


def test_no_table_is_broken():
    for path in PAGES:
        for table in re.findall(r"(?:^\|.*\n)+", path.read_text(), re.MULTILINE):
            columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(columns) == 1, table.splitlines()[0]


def test_every_section_that_it_must_have_is_there():
    headings = anchors(TEXT)
    assert {
        *("quick-start", "how-it-works", "when-not-to-use-it", "settings", "guarantees", "operating"),
        *("choosing-the-ttl", "moving-from-a-shared-queue-and-back", "words", "development", "contributing", "changes"),
    } <= headings
    assert blocks_in(README)[0].section == "celery_gpulease", "the first screen says how to try it"
