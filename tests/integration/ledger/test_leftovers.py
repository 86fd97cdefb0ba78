"""What a dead worker's task has started: it is known by its process group and its environment, and closes its GPU."""

import json
import os
import signal
import subprocess
from dataclasses import replace

import pytest

from celery_gpulease.ledger.views import gpu_rows
from celery_gpulease.worker.leftovers import RUN, Leftovers, end_left_by
from celery_gpulease.worker.processes import is_gone, realm, started_at
from tests.waiting import wait_until

GPU = "node:0"

pytestmark = pytest.mark.skipif(not realm(), reason="the kernel does not tell: no Linux, or a foreign /proc")


@pytest.fixture
def leave():
    """A child of a pool that has started a program and is gone, or both are: their pids."""
    left = []

    def start(token):
        env = {**os.environ, RUN: token} if token else os.environ
        command = ["sh", "-c", "sleep 600 >/dev/null & echo $!"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, start_new_session=True) as child:
            left.append(int(child.stdout.read()))
        return child.pid, left[-1]

    yield start
    for pid in left:
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def dead(world):
    """A worker that runs a task, and is killed a moment later."""
    worker = world.join()
    world.hold(ticket="t")
    worker.claim()
    worker.token = worker.run().token
    return worker


def end_left(world, dead, child):
    end_left_by(world.ledger, GPU, replace(dead.presence, children=((child, 1),)))


def until_gone(pid):
    wait_until(lambda: is_gone(pid), 10, "it to end")


@pytest.mark.parametrize("token", ["its", "another run's"])
def test_what_is_in_the_dead_childs_group_is_killed(world, dead, leave, token):
    child, program = leave(dead.token if token == "its" else "another")
    end_left(world, dead, child)
    until_gone(program)
    assert world.closed() == {}


def test_a_group_in_which_nothing_is_marked_has_got_its_number_later(world, dead, leave):
    child, program = leave(None)
    end_left(world, dead, child)
    assert not is_gone(program)
    assert world.closed() == {}


def test_what_its_run_has_started_elsewhere_closes_the_gpu_until_it_is_gone(world, dead, leave):
    _, program = leave(dead.token)
    leave("another")
    _, other = leave(None)
    end_left(world, dead, other)
    assert world.ledger.bury(GPU, dead.presence.instance)
    newcomer = world.join()
    newcomer.report()
    assert newcomer.claim().reason == "quarantine"
    (row,) = gpu_rows(world.ledger)
    assert (row.state, f"process {program} (sleep)" in row.reason) == ("quarantined", True)
    leftovers = Leftovers(world.ledger, GPU)
    leftovers.look()
    assert "quarantine" in world.closed()
    os.kill(program, signal.SIGKILL)
    until_gone(program)
    leftovers.look()
    assert world.closed() == {}
    assert newcomer.pop().ticket == "t"


def test_what_closes_the_gpu_after_the_first_look_is_seen_too(world):
    """A neighbour was slower than the next worker's start, or Redis has loaded an old snapshot."""
    world.join()
    leftovers = Leftovers(world.ledger, GPU)
    leftovers.look()
    told = json.dumps({"realm": realm(), "processes": [[os.getpid(), 1]]})
    world.ledger.quarantine(GPU, "something is left", told)
    leftovers.look()
    assert world.closed() == {}


@pytest.mark.parametrize("where", ["another boot", realm()])
def test_what_is_remembered_and_cannot_be_there_any_more_closes_nothing(world, where):
    world.join()
    started = 1 if where == realm() else started_at(os.getpid())
    told = json.dumps({"realm": where, "processes": [[os.getpid(), started]]})
    world.ledger.quarantine(GPU, "something is left", told)
    Leftovers(world.ledger, GPU).look()
    assert world.closed() == {}
