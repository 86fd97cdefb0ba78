"""A worker that dies beside another one on its host is known to be dead at once, where that is certain: only there."""

import json
import subprocess

import pytest

from celery_gpulease.worker.processes import realm, started_at
from tests.faults.faults import Fault
from tests.faults.world import HOST, SOON, now
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not realm(), reason="the kernel does not tell who lives: no Linux, or a foreign /proc")

DEATHS = [Fault.PROCESS_KILLED, pytest.param(Fault.WORKER_KILLED, marks=pytest.mark.long)]
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")


def is_buried(world, gpu):
    return not world.client.exists(f"gpu:worker:{HOST}:{gpu}") and not world.lease(gpu)


def until_buried(world, gpu):
    wait_until(lambda: is_buried(world, gpu), SOON, f"the worker of GPU {gpu} to be known as dead")


@pytest.mark.parametrize("fault", DEATHS, ids=lambda fault: fault.name)
def test_its_task_runs_on_the_neighbour_while_its_own_lease_would_last_for_minutes(patient, fault):
    workers = {f"{HOST}:0": patient.worker(0), f"{HOST}:1": patient.worker(1)}
    task = patient.send("wait_for", "go")
    first = patient.started(task)
    killed = now()
    fault.hit(patient, workers.pop(first.gpu))
    again = patient.started(task, 2)
    print(f"ran again {again.start - killed:.3f} s after the kill")
    assert again.gpu in workers
    gpu = int(first.gpu.rpartition(":")[2])
    assert is_buried(patient, gpu)
    assert patient.row(gpu)["state"] == "offline"
    newcomer = patient.worker(gpu)  # which its neighbours know at once
    once = patient.send("wait_for_once", "never")
    patient.started(once)
    fault.hit(patient, newcomer)
    assert "LeaseLost" in repr(patient.ends(once, "FAILURE", SOON))
    patient.open("go")
    patient.succeeds(task)
    assert [len(patient.runs(one)) for one in (task, once)] == [2, 1]


@pytest.mark.long
@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_it_is_so_in_pools_without_children_too(patient, pool):
    worker = patient.worker(0, "-P", pool)
    task = patient.send("wait_for", "go")
    patient.started(task)
    patient.worker(1)
    Fault.PROCESS_KILLED.hit(patient, worker)
    assert patient.started(task, 2).gpu == f"{HOST}:1"
    patient.open("go")
    patient.succeeds(task)


@pytest.mark.long
def test_it_is_not_dead_while_one_of_its_processes_lives(patient):
    worker = patient.worker(0)
    task = patient.send("wait_for", "go")
    run = patient.started(task)
    other = patient.processes.start("sleep", "600", name="child")

    def presence():
        return json.loads(patient.client.hget(f"gpu:device:{HOST}:0", "presence"))

    wait_until(lambda: run.pid in [pid for pid, _ in presence()["children"]], SOON, "it to name its child")
    said = presence()
    said["children"].append([other.pid, started_at(other.pid)])
    patient.client.hset(f"gpu:device:{HOST}:0", "presence", json.dumps(said))
    patient.worker(1)
    third = patient.worker(2)
    Fault.PROCESS_KILLED.hit(patient, worker)
    third.kill()
    until_buried(patient, 2)  # by a look at both
    assert not is_buried(patient, 0)
    assert len(patient.runs(task)) == 1
    other.kill()
    assert patient.started(task, 2).gpu == f"{HOST}:1"
    patient.open("go")
    patient.succeeds(task)


@pytest.mark.long
def test_what_its_neighbour_cannot_see_is_not_taken_for_dead(patient):
    probe = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"this user may not make pid namespaces: {probe.stderr.strip()}")
    contained = patient.processes.start(*CONTAINER, "celery", "-A", "proj", "worker", "--gpu", "0", "-l", "info")
    contained.wait_for_log(" ready.")
    task = patient.send("wait_for", "go")
    patient.started(task)
    patient.worker(1)
    third = patient.worker(2)
    contained.kill()
    third.kill()
    until_buried(patient, 2)
    assert not is_buried(patient, 0)
    assert len(patient.runs(task)) == 1
    patient.client.delete(f"gpu:worker:{HOST}:0")
    patient.client.zadd("gpu:deadlines", {f"{HOST}:0": 1000})
    patient.give(0)
    patient.started(task, 2)
    patient.open("go")
    patient.succeeds(task)
