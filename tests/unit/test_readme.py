"""README promises what is true: its code, its settings, its commands."""

import ast
import re
import socket
from dataclasses import asdict
from pathlib import Path

import pytest
from celery import Celery

from celery_gpulease.operate import measures as exporters
from celery_gpulease.operate.cli import gpulease
from celery_gpulease.settings import PREFIX, read_settings
from celery_gpulease.tally import Measure
from celery_gpulease.worker import measures as workers

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MISSING = re.search(r"^## Not there yet\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)[1]
METRICS = re.search(r"^## Metrics\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)[1]
PROMISED = README.replace(MISSING, "")

URL = "redis://localhost:6379/0"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def settings_table() -> dict[str, str]:
    return dict(re.findall(rf"^\| `({PREFIX}\w+)` \| (.*?) \| ", README, re.MULTILINE))


def meant_by(default: str) -> object:
    """The value that a cell of the column `default` stands for."""
    words = {"the broker's": URL, "ttl / 3": 10.0, "the host's name": socket.gethostname()}
    return words[default] if default in words else ast.literal_eval(default.strip("`"))


@pytest.mark.parametrize("code", blocks("python"))
def test_its_code_compiles(code):
    compile(code, "README.md", "exec")


@pytest.mark.parametrize("code", [one for one in blocks("python") if "import " in one and "from proj " not in one])
def test_its_self_contained_code_runs(code):
    names = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    assert any(isinstance(value, Celery) for value in names.values())


def test_its_settings_are_those_that_exist_with_their_defaults(monkeypatch):
    monkeypatch.delenv("GPULEASE_HOST", raising=False)
    real = asdict(read_settings(Celery(broker=URL).conf))
    assert {name: meant_by(default) for name, default in settings_table().items()} == {
        PREFIX + name: value for name, value in real.items()
    }


#: For Celery's own `control`, which knows all commands of all packages by one name.
CONTROL_COMMANDS = {"gpulease_drain", "gpulease_undrain"}


def test_its_metrics_are_those_that_exist():
    real = {one.name for table in (exporters, workers) for one in vars(table).values() if isinstance(one, Measure)}
    settings = {"gpulease_metrics_port"}
    assert set(re.findall(r"\bgpulease_\w+", METRICS)) - settings == real


def test_it_names_no_setting_that_does_not_exist():
    named = set(re.findall(rf"\b{PREFIX}[a-z_]+\b", README.replace(METRICS, ""))) - CONTROL_COMMANDS
    assert named <= settings_table().keys()


def test_the_targets_that_it_names_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for text in re.findall(r"`([^`]*)`", README) + blocks("sh")
        for name in re.findall(r"\bmake ([a-z-]+)", text)
    }
    assert {"demo", "test"} <= named <= targets


def test_the_commands_that_it_promises_exist_and_the_missing_ones_do_not():
    promised = set(re.findall(r"\bgpulease ([a-z]+)\b", PROMISED))
    assert promised <= gpulease.commands.keys(), "named as available, and not registered"
    missing = "".join(re.findall(r"^- Commands: (.*?);", MISSING, re.MULTILINE))
    assert not set(re.findall(r"`([a-z]+)", missing)) & gpulease.commands.keys(), "there by now: move it to its table"


def test_its_links_lead_somewhere():
    headings = {
        re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in re.findall(r"^#+ (.*)", README, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert target[1:] in headings if target.startswith("#") else (ROOT / target).exists(), target
