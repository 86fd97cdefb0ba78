"""What `gpulease` shows on a real terminal, and without colours."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from uuid import uuid4

import pytest

from celery_gpulease.ledger import Ledger
from celery_gpulease.settings import Settings
from tests.integration.ledger.world import World

PROJECT = """
import os
from celery import Celery
from celery_gpulease import GPULease

app = Celery("proj", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
GPULease(app)
"""
TASK = "project.tasks.train_model"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ROWS = 24


@pytest.fixture
def world(redis_url):
    """Four GPUs of a host with a name of some length, two pools; a task runs, and others wait."""
    made = World(Ledger(Settings(redis_url=redis_url)))
    worker = made.join("gpunode7:0", ("default", "a100"))
    made.hold(task=TASK, task_id=str(uuid4()))
    worker.claim()
    worker.run()
    made.join("gpunode7:1")
    made.stranger_takes("gpunode7:1")
    for gpu in ("gpunode7:2", f"GPU-{uuid4()}"):
        made.join(gpu, ("default", "a100"))
        made.drained(gpu)
    for pool in ("default", "a100", "a100", "nobody"):
        made.hold(task=TASK, task_id=str(uuid4()), pool=pool)
    yield made
    made.close()
    made.client.close()


@pytest.fixture
def shown(redis_url, tmp_path):
    """What a command shows on a terminal of so many columns."""
    (tmp_path / "proj.py").write_text(PROJECT)

    def run(columns, *command, **env):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        environ = {**inherited, "TERM": "xterm", "REDIS_URL": redis_url, **env}
        process = subprocess.Popen(
            (sys.executable, "-m", "celery", *command),
            cwd=tmp_path,
            env=environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        told = b""
        with suppress(OSError):  # so Linux says that nobody has the other end any more
            while part := os.read(ours, 65536):
                told += part
        os.close(ours)
        assert process.wait() == 0, told
        return told.decode().replace("\r\n", "\n")

    return run


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("command", ["status", "pending", "journal", "why"])
def test_on_a_terminal_no_line_is_too_long_and_no_word_is_broken(world, shown, command, columns):
    task_id = world.ticket(world.claim_of("gpunode7:0")["ticket"])["task_id"]
    words = [command, task_id] if command == "why" else [command]
    told = COLOURS.sub("", shown(columns, "-A", "proj", "gpulease", *words))
    assert max(map(len, told.splitlines())) <= max(columns, len(f"{TASK}[{task_id}]")), told
    for word in {
        "status": ("gpunode7:0", "leased", "draining", "default,a100", TASK, task_id),
        "why": (task_id,),
        "pending": ("default", TASK, "'nobody'"),
        "journal": ("claimed", "held", task_id),
    }[command]:
        assert word in re.split(r"[\s\[\]]+", told), told


def test_colours_are_taken_away_and_the_layout_stays(world, shown):
    coloured = shown(80, "-A", "proj", "gpulease", "pending")
    assert "\x1b[" in coloured
    without = shown(80, "-A", "proj", "gpulease", "pending", NO_COLOR="1")
    assert "\x1b" not in without
    assert "\x1b" not in shown(80, "--no-color", "-A", "proj", "gpulease", "pending")

    def layout(told):
        return re.sub(r"\d+\.\ds ", "", COLOURS.sub("", told))

    assert layout(coloured) == layout(without)
