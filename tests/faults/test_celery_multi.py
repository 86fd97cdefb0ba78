"""examples/celery_multi: the workers of several GPUs by one command, started, restarted and stopped for real."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from celery_gpulease.worker.processes import is_gone
from tests.faults.world import HOST, LONG, SOON
from tests.pages import commands_of
from tests.waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "examples" / "celery_multi" / "workers"


class Multi:
    """`./workers` in a folder of its own; what it starts has left the test's session, and is ended here."""

    def __init__(self, world):
        self._world, self._folder = world, world.folder / "multi"
        self._folder.mkdir()
        shutil.copy(SCRIPT, self._folder)

    def start(self, *command):
        """Starts it."""
        name = "-".join(command)
        return self._world.processes.start("./workers", *command, cwd=self._folder, name=name, GPUS="0 1")

    def run(self, *command):
        """Runs it to its end; what it printed."""
        process = self.start(*command)
        assert process.wait(LONG) == 0, f"{process!r}\n{self.logs()}"
        return process.output

    def logs(self):
        """What the workers logged."""
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("log/*.log")))

    def pids(self):
        """Those of the main processes, by GPU."""
        texts = {int(path.stem[3:]): path.read_text().strip() for path in self._folder.glob("run/gpu*.pid")}
        return {gpu: int(text) for gpu, text in texts.items() if text}

    def until_serving(self, *gpus, but=()):
        """Waits until workers, other than these, serve these GPUs."""

        def are_serving():
            pids, heard = self.pids(), self._world.client.pubsub_numsub(*(f"gpu:here:{HOST}:{gpu}" for gpu in gpus))
            return all(gpu in pids and pids[gpu] not in but for gpu in gpus) and all(number for _, number in heard)

        try:
            wait_until(are_serving, LONG, f"workers of {gpus}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def end(self):
        """Leaves no process behind."""
        for pid in self.pids().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def multi(world):
    multi = Multi(world)
    yield multi
    multi.end()


def test_its_readme_says_what_is_run_here():
    assert commands_of("celery_multi") == [
        [("GPUS=0 1", "./workers", word) for word in ("start", "restart", "stopwait")]
    ]


def test_it_would_start_a_worker_for_each_gpu_under_its_own_name(multi):
    for gpu, command in enumerate(multi.run("show").splitlines()):
        assert {f"--gpu={gpu}", "-n", f"gpu{gpu}@{HOST}", "--detach"} <= set(command.split())
    assert gpu == 1


def test_a_worker_that_is_refused_says_why_in_its_log(world):
    world.worker(0)
    log = world.folder / "second.log"
    command = ("celery", "-A", "proj", "worker", "--gpu", "0", "-n", "second@x", "--logfile", str(log))
    assert world.processes.start(*command, name="second").wait() == 1
    assert "GPUInUse: GPU node7:0 is in use by worker gpu0@node7" in log.read_text()


@pytest.mark.long
def test_its_workers_serve_start_anew_each_when_its_job_has_ended_and_leave_nothing(world, multi):
    multi.run("start")
    multi.until_serving(0, 1)
    world.succeeds(*(world.send("add", 1, 2, gpu=f"{HOST}:{gpu}") for gpu in (0, 1)))

    first, task = multi.pids(), world.send("wait_for", "go", gpu=f"{HOST}:0")
    world.started(task)
    restart = multi.start("restart")
    multi.until_serving(1, but=first.values())
    assert not is_gone(first[0])
    world.succeeds(world.send("add", 3, 4))  # on the GPU that is back
    world.open("go")
    world.succeeds(task)
    assert restart.wait() == 0, repr(restart)
    multi.until_serving(0, 1, but=first.values())
    assert len(world.runs(task)) == 1

    second, last = multi.pids(), world.send("wait_for", "last", gpu=f"{HOST}:1")
    world.started(last)
    stop = multi.start("stopwait")
    wait_until(lambda: is_gone(second[0]), SOON, "the idle worker to end")
    assert not is_gone(second[1])
    world.open("last")
    assert stop.wait() == 0, repr(stop)
    assert (multi.pids(), [is_gone(pid) for pid in second.values()]) == ({}, [True, True])
    world.succeeds(last)
    assert [world.row(gpu)["state"] for gpu in (0, 1)] == ["offline", "offline"]


@pytest.mark.long
def test_whoever_stops_it_by_quit_sends_its_jobs_back_to_their_places_uncounted(world, multi):
    multi.run("start")
    multi.until_serving(0, 1)
    tasks = [world.send("wait_for", "go") for _ in range(2)]
    for task in tasks:
        world.started(task)
    multi.run("stopwait", "-QUIT")
    for task in tasks:
        (ticket,) = world.client.hkeys(f"gpu:task:{task}")
        assert world.client.hmget(f"gpu:ticket:{ticket}", "state", "deliveries") == ["pending", "0"]
    multi.run("start")
    world.open("go")
    world.succeeds(*tasks)
    assert [len(world.runs(task)) for task in tasks] == [2, 2]
    multi.run("stopwait")
