"""solo and threads, whose tasks run in main's own process: the lease is kept, and no task ends its worker."""

import signal

import psutil
import pytest

from celery_gpulease import LeaseLost
from tests.faults.world import HOST, SOON, TTL, kill, now
from tests.waiting import wait_until

IN_MAIN = ("solo", "threads")


@pytest.mark.parametrize("pool", ["solo", pytest.param("threads", marks=pytest.mark.long)])
def test_a_task_that_holds_the_gil_for_three_ttl_keeps_its_lease_and_runs_once(world, pool):
    world.worker(0, "-P", pool)
    task, following = world.send("hold_gil", 3 * TTL), world.send("add", 1, 2)
    run = world.started(task)
    token = world.lease(0)
    while now() < run.start + 3 * TTL:
        assert world.lease(0) == token
        assert world.client.exists(f"gpu:worker:{HOST}:0")
    world.succeeds(task, following)
    assert len(world.runs(task)) == 1
    assert not happened(world, "regained", "reaped")


def happened(world, *whats):
    """Those of these that are in the ledger's journal."""
    return {fields["what"] for _, fields in world.client.xrange("gpu:journal")} & {*whats}


def companion_of(worker):
    """The process that beats beside a worker's main, by what it runs."""
    found = [pid for pid in worker.children() if "companion_process" in command_of(pid)]
    assert len(found) <= 1
    return found[0] if found else None


def command_of(pid):
    """What a process runs; nothing where it has just ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.long
def test_a_companion_that_is_killed_is_started_again_and_told_what_runs(world):
    worker = world.worker(0, "-P", "threads")
    task = world.send("wait_then_hold_gil", "go", 3 * TTL)
    world.started(task)
    killed = companion_of(worker)
    assert world.url not in command_of(killed)  # it may have a password in it
    kill(killed)
    another = wait_until(lambda: companion_of(worker) not in (None, killed) and companion_of(worker), SOON, "another")
    wait_until(lambda: psutil.Process(another).net_connections(), SOON, "it to beat")  # it takes a while to be ready
    world.open("go")
    wait_until(lambda: any(line["what"] == "holding" for line in world.journal()), SOON, "the GIL to be held")
    world.succeeds(task)
    assert "is started again" in worker.log
    assert not happened(world, "regained", "reaped")


@pytest.mark.long
@pytest.mark.parametrize("pool", IN_MAIN)
def test_a_companion_goes_with_its_main_also_when_a_child_of_the_task_has_its_pipe(world, pool):
    worker = world.worker(0, "-P", pool)
    task = world.send("fork_and_wait", "go")
    world.started(task)
    companion = companion_of(worker)
    kill(worker.pid)
    wait_until(lambda: not psutil.pid_exists(companion), SOON, "the companion to go")
    world.open("grandchild")
    world.worker(1)
    world.open("go")
    world.succeeds(task)
    assert len(world.runs(task)) == 2


@pytest.mark.long
def test_no_companion_keeps_the_lease_of_a_main_that_is_frozen(world):
    worker = world.worker(0, "-P", "threads")
    task = world.send("wait_for", "go")
    world.started(task)
    world.worker(1)
    kill(worker.pid, signal.SIGSTOP)
    again = world.started(task, number=2)
    kill(worker.pid, signal.SIGCONT)
    assert again.gpu == f"{HOST}:1"
    wait_until(lambda: "has lost the lease" in worker.log, SOON, "the first run to be told")
    world.open("go")
    world.succeeds(task)


def test_what_a_pool_cannot_do_is_said_once(world):
    worker = world.worker(0, "-P", "threads")
    assert worker.log.count("cannot stop a task: revoke") == 1
    tasks = [world.send("wait_for", "go", time_limit=1) for _ in range(2)]
    world.started(tasks[0])
    world.app.control.revoke(tasks[0], terminate=True, reply=True, timeout=5)
    worker.wait_for_log("runs on, to its own end")
    wait_until(lambda: now() > world.runs(tasks[0])[0].start + 1, SOON, "the limit to pass")
    world.open("go")
    world.succeeds(*tasks)
    assert worker.log.count("cannot limit a task's time: proj.wait_for") == 1
    assert companion_of(worker)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("pool", IN_MAIN)
def test_whatever_a_task_raises_its_worker_goes_on_and_it_has_one_end(world, pool):
    worker = world.worker(0, "-P", pool)
    deaths = [world.send("throw", kind) for kind in ("SystemExit", "KeyboardInterrupt", "GeneratorExit")]
    before = world.send("throw_outside", "before")
    memory, after = world.send("throw", "MemoryError"), world.send("throw_outside", "after")
    following = world.send("add", 1, 2)
    for task in deaths:
        assert isinstance(world.ends(task, "FAILURE"), LeaseLost)
        assert len(world.runs(task)) == 3
    assert isinstance(world.ends(before, "FAILURE"), LeaseLost)
    assert [line["task"] for line in world.journal() if line["what"] == "before"] == [before] * 3
    assert isinstance(world.ends(memory, "FAILURE"), MemoryError)
    world.succeeds(following, after)
    assert [len(world.runs(task)) for task in (memory, after)] == [1, 1]
    assert worker.exit_code is None


def test_a_memory_error_is_the_tasks_own_end_in_prefork_too(world):
    worker = world.worker(0)
    task, after, following = (
        world.send("throw", "MemoryError"),
        world.send("throw_outside", "after"),
        world.send("add", 1, 2),
    )
    assert isinstance(world.ends(task, "FAILURE"), MemoryError)
    world.succeeds(after, following)
    assert [len(world.runs(one)) for one in (task, after)] == [1, 1]
    assert worker.exit_code is None
