"""Signals of every kind for processes of every kind: what runs has one end, and the line goes on."""

import signal
from functools import partial

import pytest
from celery.result import AsyncResult

from celery_gpulease.ledger.checks import inconsistencies
from tests.faults.faults import Fault
from tests.faults.memory import forget_limits, memory_root
from tests.faults.world import HOST


def goes_on(world, *tasks):
    """These and some more come to their ends."""
    world.open("go")
    world.succeeds(*tasks, *(world.send("add", n, n) for n in range(3)))


@pytest.mark.long
def test_a_companion_and_a_beat_may_be_stopped_and_end_in_any_way(world):
    worker, beat = world.worker(0, "-P", "solo"), world.beat()
    task = world.send("wait_for", "go")
    world.started(task)
    with Fault.CHILDREN_STOPPED.during(world, worker), Fault.PROCESS_STOPPED.during(world, beat):
        pass
    for fault in (Fault.CHILDREN_TERMINATED, Fault.CHILDREN_QUIT):  # main's answer counts
        fault.hit(world, worker)
    (companion,) = worker.children()
    Fault.CHILDREN_KILLED.hit(world, worker)
    worker.wait_for_log("is started again")
    assert companion not in worker.children()
    Fault.PROCESS_KILLED.hit(world, beat)
    goes_on(world, task)
    assert len(world.runs(task)) == 1


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_beat_may_end_and_come_back(world, number):
    world.worker(0)
    beat = world.beat()
    task = world.send("wait_for", "go")
    world.started(task)
    beat.send(number)
    beat.wait()
    world.beat()
    goes_on(world, task)
    assert len(world.runs(task)) == 1


STOPS = {Fault.PROCESS_STOPPED: 2, Fault.WORKER_STOPPED: 2, Fault.CHILDREN_STOPPED: 1}


@pytest.mark.long
@pytest.mark.parametrize(("fault", "runs"), STOPS.items(), ids=lambda one: getattr(one, "name", ""))
def test_a_worker_that_is_stopped_and_comes_back_brings_no_second_end(world, fault, runs):
    workers = {f"{HOST}:{index}": world.worker(index) for index in range(2)}
    task = world.send("wait_for", "go")
    first = world.started(task)
    with fault.during(world, workers[first.gpu]):
        if runs == 2:
            assert world.started(task, 2).gpu != first.gpu
    goes_on(world, task)
    assert len(world.runs(task)) == runs


def test_a_task_for_which_the_kernel_has_no_memory_runs_again_and_one_that_may_have_no_more_fails(world, request):
    worker = world.worker(0)
    limited = world.send("reach_a_limit")
    assert "MemoryError" in repr(world.ends(limited, "FAILURE"))
    if memory_root() is None:
        pytest.skip("this user may not make control groups that limit memory")
    task = world.send("want_memory", "go")
    world.started(task)
    request.addfinalizer(partial(forget_limits, world.folder.name))
    Fault.CHILDREN_OUT_OF_MEMORY.hit(world, worker)
    goes_on(world, task)
    assert [run.end is None for run in world.runs(task)] == [True, False]


def test_a_sender_that_is_killed_has_sent_the_whole_task_or_nothing(world):
    steps = int(world.processes.run("python", "killed_sender.py").output)
    tasks = [f"step-{step}" for step in range(steps + 1)]
    sent = [task for task in tasks if world.client.exists(f"gpu:task:{task}")]
    assert 0 < len(sent) < len(tasks)
    assert sent == tasks[-len(sent) :]
    assert len(sent) > 1  # it was killed when the reply was on its way
    assert inconsistencies(world.ledger) == []
    assert len(world.client.keys("gpu:ticket:*")) == len(sent)
    world.worker(0)
    world.sent += sent
    world.succeeds(*sent)
    assert sorted(run.task for run in world.runs()) == sorted(sent)
    assert {AsyncResult(task, app=world.app).state for task in tasks if task not in sent} == {"PENDING"}
