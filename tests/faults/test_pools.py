"""solo and threads, whose tasks run in main's own process: the lease is kept, and no task ends its worker."""

import psutil
import pytest

from celery_gpulease import LeaseLost
from tests.faults.world import HOST, SOON, TTL, kill, now
from tests.waiting import wait_until

IN_MAIN = ("solo", "threads")


@pytest.mark.parametrize("pool", IN_MAIN)
def test_a_task_that_holds_the_gil_for_three_ttl_keeps_its_lease_and_runs_once(world, pool):
    world.worker(0, "-P", pool)
    world.worker(1, "-P", pool)  # it reaps what lapses
    task, following = world.send("hold_gil", 3 * TTL, gpu=f"{HOST}:0"), world.send("add", 1, 2, gpu=f"{HOST}:0")
    run = world.started(task)
    token = world.lease(0)
    while now() < run.start + 3 * TTL:
        assert world.lease(0) == token
        assert world.client.exists(f"gpu:worker:{HOST}:0")
    world.succeeds(task, following)
    assert len(world.runs(task)) == 1
    whats = [fields["what"] for _, fields in world.client.xrange("gpu:journal")]
    assert "regained" not in whats


def companion_of(worker):
    """The process that beats beside a worker's main, by what it runs."""
    found = [pid for pid in worker.children() if "companion_process" in " ".join(psutil.Process(pid).cmdline())]
    assert len(found) <= 1
    return found[0] if found else None


def test_a_companion_that_is_killed_is_started_again_and_told_what_runs(world):
    worker = world.worker(0, "-P", "threads")
    task = world.send("wait_then_hold_gil", "go", 3 * TTL)
    world.started(task)
    killed = companion_of(worker)
    kill(killed)
    wait_until(lambda: companion_of(worker) not in (None, killed), SOON, "another companion")
    world.open("go")
    wait_until(lambda: any(line["what"] == "holding" for line in world.journal()), SOON, "the GIL to be held")
    world.succeeds(task)
    assert "is started again" in worker.log
    assert not any(fields["what"] == "regained" for _, fields in world.client.xrange("gpu:journal"))


@pytest.mark.parametrize("pool", IN_MAIN)
def test_whatever_a_task_raises_its_worker_goes_on_and_it_has_one_end(world, pool):
    worker = world.worker(0, "-P", pool)
    deaths = [world.send("throw", kind) for kind in ("SystemExit", "KeyboardInterrupt", "GeneratorExit")]
    before = world.send("throw_outside", "before")
    memory = world.send("throw", "MemoryError")
    following = world.send("add", 1, 2)
    for task in deaths:
        assert isinstance(world.ends(task, "FAILURE"), LeaseLost)
        assert len(world.runs(task)) == 3
    assert isinstance(world.ends(before, "FAILURE"), LeaseLost)
    assert [line["task"] for line in world.journal() if line["what"] == "before"] == [before] * 3
    assert isinstance(world.ends(memory, "FAILURE"), MemoryError)
    assert len(world.runs(memory)) == 1
    world.succeeds(following)
    assert worker.exit_code is None


def test_a_memory_error_is_the_tasks_own_end_in_prefork_too(world):
    worker = world.worker(0)
    task, following = world.send("throw", "MemoryError"), world.send("add", 1, 2)
    assert isinstance(world.ends(task, "FAILURE"), MemoryError)
    world.succeeds(following)
    assert len(world.runs(task)) == 1
    assert worker.exit_code is None
