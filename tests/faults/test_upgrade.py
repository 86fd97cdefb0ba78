"""A rolling upgrade: versions of one layout work beside each other, and of two layouts the second is refused."""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

import celery_gpulease
from celery_gpulease import ConfigurationError
from celery_gpulease.ledger.layout import LAYOUT
from celery_gpulease.version import __version__
from tests.faults.world import HOST, PROJECT, SOON
from tests.waiting import wait_until

NEXT = "99.0.0"


@pytest.fixture
def upgraded(tmp_path):
    """Makes another version of the package; what a process that runs with it needs in its environment."""

    def made(layout=LAYOUT):
        copy = tmp_path / "next" / "celery_gpulease"
        shutil.copytree(Path(celery_gpulease.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for name, line, new in (
            ("version.py", r'^__version__ = ".*"$', f'__version__ = "{NEXT}"'),
            ("ledger/layout.py", r"^LAYOUT: Final = \d+$", f"LAYOUT: Final = {layout}"),
        ):
            text, count = re.subn(line, new, (copy / name).read_text(), flags=re.MULTILINE)
            assert count == 1
            (copy / name).write_text(text)
        return {"PYTHONPATH": os.pathsep.join([str(copy.parent), str(PROJECT)])}

    return made


def warm(worker, world):
    worker.send(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.output, SOON, "the signal to be heard")
    world.open("go")


def cold(worker, world):
    worker.send(signal.SIGQUIT)


def refused(world, gpu, **env):
    """What a worker says that does not start."""
    worker = world.processes.start("celery", "-A", "proj", "worker", "--gpu", str(gpu), name="refused", **env)
    assert worker.wait() == 1, repr(worker)
    assert "Traceback" not in worker.log
    return worker.log


@pytest.mark.parametrize(("pool", "stop"), [("prefork", warm), ("prefork", cold), ("solo", warm)])
def test_a_worker_whose_files_are_gone_works_and_leaves_with_what_it_began_with(world, upgraded, pool, stop):
    """`pip install -U`, or another commit under an editable installation, while it serves."""
    env = upgraded()
    worker = world.worker(0, "-P", pool, **env)
    shutil.rmtree(Path(env["PYTHONPATH"].split(os.pathsep)[0]) / "celery_gpulease")
    task, following = world.send("wait_for", "go"), world.send("add", 1, 2)
    world.started(task)
    stop(worker, world)
    assert worker.wait() == 0, repr(worker)
    assert [words for words in ("ERROR", "CRITICAL", "Traceback") if words in worker.log] == []
    assert not world.client.exists(f"gpu:worker:{HOST}:0", f"gpu:lease:{HOST}:0", f"gpu:claim:{HOST}:0")
    assert world.client.zcard("gpu:pending:default") == (2 if stop is cold else 1)
    world.open("go")
    world.worker(1)
    world.succeeds(task, following)


def test_versions_of_one_layout_work_beside_each_other(world, upgraded):
    world.worker(0)
    world.worker(1, **upgraded())
    world.succeeds(*(world.send("add", n, n, gpu=f"{HOST}:{n % 2}") for n in range(6)))
    said = world.gpulease("doctor").output
    assert f"{NEXT}: gpu1@{HOST}. They share layout {LAYOUT}" in said
    assert f"the ledger is of layout {LAYOUT}, since version {__version__}" in said


def test_a_newer_layout_is_left_alone_by_workers_senders_and_commands(world, upgraded):
    world.worker(0, **upgraded(LAYOUT + 1))
    words = f"is of layout {LAYOUT + 1}, which celery_gpulease {NEXT} made so"
    cure = "Install that version here"
    said = refused(world, 1)
    assert (words in said, cure in said) == (True, True)
    with pytest.raises(ConfigurationError, match=f"{words}.*{cure}"):
        world.send("add", 1, 2)
    for command in ("status", "pending", "doctor"):
        process = world.gpulease(command)
        assert process.exit_code == 1
        assert words in process.output + process.log
        assert "Traceback" not in process.log
    assert world.gpulease("doctor").output.count("FOUND  layout") == 1


def test_a_newer_layout_begins_when_the_older_one_is_not_in_use_any_more(world, upgraded):
    newer, old = upgraded(LAYOUT + 1), world.worker(0)
    world.succeeds(world.send("add", 1, 2))
    said = refused(world, 1, **newer)
    assert f"is of layout {LAYOUT}, which celery_gpulease {__version__} made so, and in use" in said
    assert "Stop its senders, let what is held there end (or cancel it), stop its workers, then start this one" in said
    old.send(signal.SIGTERM)
    assert old.wait() == 0
    world.worker(1, **newer)
    with pytest.raises(ConfigurationError, match="Install that version here"):  # a sender that nobody has stopped
        world.send("add", 1, 2)
    wait_until(lambda: world.client.hget("gpu:layout", "number") == str(LAYOUT + 1), SOON, "the new layout")
