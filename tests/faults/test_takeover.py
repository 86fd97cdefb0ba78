"""A worker that comes back after `kill -9` has its GPU at once where it sees that the old one is dead: only there."""

import json
import signal
import subprocess

import pytest

from celery_gpulease.worker.processes import realm, started_at
from tests.faults.world import HOST, SOON, kill
from tests.processes import Process
from tests.waiting import wait_until

GPU = f"{HOST}:0"
IS_DEAD, IS_AWAITED = "which is dead", "waiting whether it lives"

pytestmark = pytest.mark.skipif(not realm(), reason="the kernel does not tell who lives: no Linux, or a foreign /proc")


def presence(world):
    return json.loads(world.client.get(f"gpu:worker:{GPU}"))


def start(world, *before, name="another"):
    """A worker of GPU 0, which may not get it."""
    command = (*before, "celery", "-A", "proj", "worker", "--gpu", "0", "-l", "info", "-n", f"{name}@x")
    return world.processes.start(*command, name=name)


def now_ms(world):
    seconds, microseconds = world.client.time()
    return seconds * 1000 + microseconds // 1000


@pytest.mark.parametrize("kill_it", [Process.kill, lambda worker: kill(worker.pid)], ids=["all", "main"])
def test_a_killed_workers_successor_runs_its_task_again_while_the_old_lease_would_last(patient, kill_it):
    worker = patient.worker(0)
    task, waiting = patient.send("wait_for", "go"), patient.send("add", 1, 2)
    run, deadline = patient.started(task), patient.client.zscore("gpu:deadlines", GPU)
    kill_it(worker)  # with main alone its child dies, too
    successor = patient.worker(0)
    again = patient.started(task, 2)
    assert now_ms(patient) < deadline
    assert again.fence > run.fence
    assert f"worker gpu0@{HOST} (pid {worker.pid} on {HOST}), {IS_DEAD}" in successor.log
    (ticket,) = patient.client.hkeys(f"gpu:task:{task}")
    assert patient.client.hget(f"gpu:ticket:{ticket}", "deliveries") == "2"
    patient.open("go")
    patient.succeeds(task, waiting)
    assert len(patient.runs(task)) == 2


def test_of_two_successors_of_a_worker_that_was_killed_idle_one_serves_and_the_other_is_refused(patient):
    patient.worker(0).kill()
    both = [start(patient, name="one"), start(patient, name="two")]
    wait_until(lambda: any(one.exit_code is not None for one in both), SOON, "one to be refused")
    wait_until(lambda: any(" ready." in one.log for one in both), SOON, "one to serve")
    refused, serving = sorted(both, key=lambda one: one.exit_code is None)
    assert (refused.exit_code, serving.exit_code) == (1, None)
    assert "GPUInUse" in refused.log
    assert presence(patient)["worker"] == serving.name.partition("-")[2] + "@x"
    patient.succeeds(patient.send("add", 1, 2))


def test_a_child_that_outlives_its_killed_worker_is_waited_for(patient):
    patient.worker(0).kill()
    child = patient.processes.start("sleep", "600", name="child")
    left = {**presence(patient), "children": [[child.pid, started_at(child.pid)]]}
    patient.client.set(f"gpu:worker:{GPU}", json.dumps(left), keepttl=True)
    patient.client.hset(f"gpu:device:{GPU}", "presence", json.dumps(left))
    successor = start(patient)
    successor.wait_for_log(IS_AWAITED)
    assert presence(patient) == left
    assert IS_DEAD not in successor.log
    child.kill()
    successor.wait_for_log(" ready.")
    assert IS_DEAD in successor.log


def test_a_presence_names_the_process_that_runs_the_task_whenever_it_was_forked(patient):
    patient.worker(0, "--max-tasks-per-child", "1")
    for number in range(2):
        task = patient.send("wait_for", f"go{number}")
        pid = patient.started(task).pid
        wait_until(lambda pid=pid: pid in dict(presence(patient)["children"]), SOON, "the child to be named")
        assert dict(presence(patient)["children"])[pid] == started_at(pid)
        patient.open(f"go{number}")
        patient.succeeds(task)


def test_a_worker_that_lives_is_not_doubted_and_one_that_stops_is_waited_for(patient):
    worker = patient.worker(0)
    task = patient.send("wait_for", "go")
    run = patient.started(task)
    second = start(patient)
    assert second.wait() == 1
    assert "GPUInUse" in second.log
    worker.send(signal.SIGTERM)
    wait_until(lambda: patient.client.hexists(f"gpu:closed:{GPU}", "closing"), SOON, "the worker to close")
    successor = start(patient)
    successor.wait_for_log(IS_AWAITED)
    assert run.pid in dict(presence(patient)["children"])
    patient.open("go")
    successor.wait_for_log(" ready.")
    patient.succeeds(task)
    assert len(patient.runs(task)) == 1


# as in containers of one host name: each sees only its own processes

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")
FOREIGN_PROC = ("unshare", "--pid", "--fork")
EVERYWHERE = {"container": CONTAINER, "foreign": FOREIGN_PROC, "host": ()}


@pytest.fixture
def contained(steady):
    """A worker in a pid namespace of its own, and the id of the task that it runs until `go` is opened."""
    probe = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"this user may not make pid namespaces: {probe.stderr.strip()}")
    worker = start(steady, *CONTAINER, name="contained")
    worker.wait_for_log(" ready.")
    task = steady.send("wait_for", "go")
    steady.started(task)
    assert presence(steady)["pid"] == 1  # which is somebody else wherever the others look
    yield worker, task
    steady.open("go")
    steady.succeeds(task)


def test_a_living_worker_of_another_pid_namespace_is_not_taken_for_dead(steady, contained):
    _, task = contained
    for other in [start(steady, *before, name=name) for name, before in EVERYWHERE.items()]:
        assert other.wait() == 1, repr(other)
        assert IS_AWAITED in other.log
        assert "GPUInUse" in other.log
        assert IS_DEAD not in other.log
    assert len(steady.runs(task)) == 1


def test_a_killed_worker_of_another_pid_namespace_is_waited_for_until_its_presence_lapses(steady, contained):
    worker, task = contained
    worker.kill()
    left = presence(steady)
    others = [start(steady, *before, name=name) for name, before in EVERYWHERE.items()]
    for other in others:
        other.wait_for_log(IS_AWAITED)
    assert presence(steady) == left
    steady.client.delete(f"gpu:worker:{GPU}")
    steady.client.zadd("gpu:deadlines", {GPU: 1000})
    steady.give(0)
    steady.started(task, number=2)
    wait_until(lambda: [one.exit_code for one in others].count(1) == 2, SOON, "two to be refused")
    assert not [other for other in others if IS_DEAD in other.log]
