"""A program that a killed task has started ends with it, or closes the GPU for as long as it lives."""

import os
import signal
from collections import defaultdict

import pytest

from celery_gpulease.worker.processes import is_gone, realm
from tests.faults.faults import Fault
from tests.faults.world import HOST, LONG, SOON
from tests.waiting import wait_until

IN_GROUP, IN_SESSION = False, True

pytestmark = pytest.mark.skipif(not realm(), reason="the kernel does not tell who lives: no Linux, or a foreign /proc")


@pytest.fixture(autouse=True)
def ended_programs(request):
    """Those that nobody else ends: they are in sessions of their own."""
    world = request.getfixturevalue({"world", "patient"}.intersection(request.fixturenames).pop())
    yield
    for pid in [pid for pids in programs(world).values() for pid in pids if not is_gone(pid)]:
        os.kill(pid, signal.SIGKILL)


def programs(world):
    """The pids of what the runs of each task have started."""
    found = defaultdict(list)
    for line in world.journal():
        if line["what"] == "program":
            found[line["task"]].append(line["pid"])
    return found


def program(world, task, number=1):
    """The pid of what this run has started."""
    world.started(task, number)
    return wait_until(lambda: programs(world)[task][number - 1 :], SOON, "a program")[0]


def until_gone(pid):
    wait_until(lambda: is_gone(pid), SOON, f"process {pid} to end")


def test_it_ends_with_its_task_however_that_is_killed(world):
    worker = world.worker(0)
    task = world.send("start_program", "never", IN_GROUP)
    first, run = program(world, task), world.runs(task)[0]
    assert os.getpgid(first) == run.pid
    Fault.CHILDREN_KILLED.hit(world, worker)
    until_gone(first)
    second = program(world, task, 2)
    world.app.control.revoke(task, terminate=True)
    until_gone(second)
    world.ends(task, "REVOKED")
    task = world.send("start_program", "never", IN_GROUP, time_limit=1)
    until_gone(program(world, task))
    world.ends(task, "FAILURE")
    task = world.send("start_program", "go", IN_GROUP)
    last = program(world, task)
    worker.send(signal.SIGQUIT)
    until_gone(last)
    worker.wait()
    world.open("go")
    world.worker(0)
    world.succeeds(task)


def test_in_a_session_of_its_own_it_closes_the_gpu_until_it_is_gone_also_for_the_next_worker(world):
    worker = world.worker(0)
    kept = world.send("start_program", "end", IN_SESSION)
    harmless = program(world, kept)
    world.open("end")
    world.succeeds(kept, world.send("add", 1, 2))  # what is left by a task that ends well is its user's
    task = world.send("start_program", "go", IN_SESSION)
    pid = program(world, task)
    Fault.CHILDREN_KILLED.hit(world, worker)
    row = wait_until(lambda: (row := world.row(0))["state"] == "quarantined" and row, SOON, "a quarantine")
    assert f"process {pid} (sleep)" in row["reason"]
    assert str(harmless) not in row["reason"]
    assert f"process {pid} (sleep)" in worker.log
    assert any(str(pid) in entry["detail"] for _, entry in world.client.xrange("gpu:journal"))
    worker.send(signal.SIGTERM)
    worker.wait()
    world.worker(0)
    assert world.row(0)["state"] == "quarantined"
    assert len(world.runs(task)) == 1
    os.kill(pid, signal.SIGKILL)
    world.open("go")
    world.succeeds(task, seconds=LONG)
    assert world.runs(task)[1].gpu == f"{HOST}:0"
    assert not is_gone(harmless)


@pytest.mark.long
@pytest.mark.parametrize("has_session", [IN_GROUP, IN_SESSION], ids=["group", "session"])
@pytest.mark.parametrize("has_neighbour", [False, True])
def test_it_is_so_when_its_worker_is_killed_too(patient, has_session, has_neighbour):
    worker = patient.worker(0)
    task = patient.send("start_program", "go", has_session, gpu=f"{HOST}:0")
    pid = program(patient, task)
    if has_neighbour:
        patient.worker(1)
    Fault.PROCESS_KILLED.hit(patient, worker)
    if has_neighbour:
        wait_until(lambda: not patient.client.exists(f"gpu:worker:{HOST}:0"), SOON, "its death to be known")
    patient.worker(0)
    if has_session:
        assert f"process {pid} (sleep)" in patient.row(0)["reason"]
        patient.client.hset(f"gpu:closed:{HOST}:0", "left", "")  # as the heartbeat that would see its end
        os.kill(pid, signal.SIGKILL)
        patient.ledger.quarantine(f"{HOST}:0", "", "")
    until_gone(pid)
    patient.open("go")
    patient.succeeds(task)
