"""Who has a GPU: the answers to RENEW (test_renew.py), with real processes. A run keeps it, takes it back, or is lost.

Rows that other files provoke: its own lease renewed, deleted under it, robbed (test_worker.py), Redis away, emptied or
gone back to an old snapshot (test_redis.py), force and early release (test_operate.py). That a GPU is claimed for
another ticket under a living run needs a claim deleted by hand, and is left to
tests/integration/ledger/test_renew.py.
"""

import json

import pytest

from celery_gpulease import LeaseLost
from tests.faults.world import HEARTBEAT, HOST, SOON, TTL, frozen, now
from tests.waiting import wait_until

HERE, THERE = f"{HOST}:0", f"{HOST}:1"


@pytest.fixture
def runs_on(world):
    """Calls `runs_on(gate)`: a task that runs on GPU 0 until the gate opens, its worker, and a bystander.

    The bystander serves another pool; it beats, and takes up what lapses while the worker is frozen.
    """

    def run(gate):
        worker = world.worker(0)
        task = world.send("wait_then", gate, "SUCCESS")
        world.started(task)
        world.worker(2, "--gpu-pools", "other")
        return worker, task

    return run


def state_of(world, task):
    (ticket,) = world.client.hkeys(f"gpu:task:{task}")
    return world.client.hget(f"gpu:ticket:{ticket}", "state")


def reaped(world, task, state="pending"):
    wait_until(lambda: state_of(world, task) == state, SOON, f"the ticket to be {state}")


def test_reaped_and_waiting_a_run_takes_its_ticket_out_of_the_line_and_goes_on(world, runs_on):
    worker, task = runs_on("go")
    with frozen(worker):
        reaped(world, task)
    reaped(world, task, "started")
    assert world.lease(0)
    world.open("go")
    assert world.ends(task, "SUCCESS") == HERE
    assert len(world.runs(task)) == 1


@pytest.mark.long
def test_reaped_and_claimed_elsewhere_but_not_started_a_run_takes_its_ticket_back_from_there(world, runs_on):
    worker, task = runs_on("go")
    other = world.worker(1, TEST_RECEIVED_GATE="received")
    with frozen(worker):
        reaped(world, task, "claimed")
        assert world.lease(1)
    wait_until(lambda: not world.lease(1), SOON, "the other claim to be given up")
    reaped(world, task, "started")
    world.open("received")
    other.wait_for_log("its claim is over (stale)")
    world.open("go")
    assert world.ends(task, "SUCCESS") == HERE
    assert len(world.runs(task)) == 1


@pytest.mark.long
def test_reaped_and_a_stranger_has_the_gpu_the_run_is_lost_and_its_task_runs_again(world, runs_on):
    worker, task = runs_on("go")
    with frozen(worker):
        reaped(world, task)
        world.take(0)
    wait_until(lambda: world.runs(task)[0].how == "SystemExit", SOON, "the lost run to be stopped")
    assert (state_of(world, task), world.lease(0)) == ("pending", "stranger")
    world.open("go")
    world.give(0)
    world.succeeds(task)
    assert len(world.runs(task)) == 2


@pytest.mark.long
def test_started_elsewhere_the_first_run_is_stopped_and_stores_nothing(world, runs_on):
    worker, task = runs_on("go")
    world.worker(1)
    with frozen(worker):
        world.started(task, number=2)
    wait_until(lambda: world.runs(task)[0].how == "SystemExit", SOON, "the lost run to be stopped")
    assert not world.lease(0)
    world.open("go")
    assert world.ends(task, "SUCCESS") == THERE
    world.succeeds(world.send("add", 1, 2, gpu=HERE))


def test_robbed_just_before_its_end_a_run_leaves_the_key_alone_and_has_its_own_end(world):
    slow = {**world.conf, "gpulease_lease_ttl": 60.0, "gpulease_heartbeat_interval": 30.0}
    world.worker(0, TEST_CONF=json.dumps(slow))
    task = world.send("wait_then", "go", "SUCCESS")
    world.started(task)
    world.client.set(f"gpu:lease:{HERE}", "robber", px=60_000)
    world.open("go")
    world.ends(task, "SUCCESS")
    wait_until(lambda: not world.client.exists(f"gpu:task:{task}"), SOON, "the ticket to end")
    assert world.lease(0) == "robber"
    world.give(0)


def test_a_lease_that_is_gone_when_its_run_ends_harms_nothing(world):
    slow = {**world.conf, "gpulease_lease_ttl": 60.0, "gpulease_heartbeat_interval": 30.0}
    world.worker(0, TEST_CONF=json.dumps({**slow, "gpulease_notifications": "off"}))
    task = world.send("wait_then", "go", "SUCCESS")
    world.started(task)
    world.give(0)
    world.open("go")
    world.ends(task, "SUCCESS")
    world.succeeds(world.send("add", 1, 2))


def delete_ticket(world, task, *more):
    (ticket,) = world.client.hkeys(f"gpu:task:{task}")
    world.client.delete(f"gpu:ticket:{ticket}", f"gpu:message:{ticket}", f"gpu:task:{task}", *more)


def test_a_run_whose_ticket_was_deleted_by_hand_keeps_its_gpu_and_has_its_own_end(world):
    world.worker(0)
    task = world.send("wait_then", "go", "SUCCESS")
    run = world.started(task)
    delete_ticket(world, task)
    wait_until(lambda: now() > run.start + TTL + HEARTBEAT, SOON, "more than a ttl to pass")
    following = world.send("add", 1, 2)
    assert world.lease(0)
    world.open("go")
    world.succeeds(task, following)


def test_with_its_lease_deleted_too_it_is_lost_and_stopped(world):
    worker = world.worker(0)
    task = world.app.send_task("proj.wait_for", ("never",), pool="default").id
    world.started(task)
    delete_ticket(world, task, f"gpu:lease:{HERE}")
    worker.wait_for_log("has lost the lease")
    wait_until(lambda: world.runs(task)[0].how == "SystemExit", SOON, "the lost run to be stopped")
    world.succeeds(world.send("add", 1, 2))


@pytest.mark.long
@pytest.mark.parametrize("name", ["wait_for_once", "wait_for"])
def test_what_was_started_and_lost_before_its_process_began_does_not_begin(world, name):
    """Its new child still imports the project when both are stopped."""
    worker = world.worker(0, "--max-tasks-per-child", "1", TEST_SLOW_INIT=str(TTL))
    world.worker(1, "--gpu-pools", "other")
    world.succeeds(world.send("add", 1, 2, gpu=HERE))
    task = world.send(name, "go", gpu=HERE)
    wait_until(lambda: state_of(world, task) == "started", SOON, "START")
    world.open("go")
    with frozen(worker):
        if name == "wait_for_once":
            world.ends(task, "FAILURE")
        else:
            reaped(world, task)
    if name == "wait_for_once":
        world.succeeds(world.send("add", 1, 2, gpu=HERE))
        assert world.runs(task) == []
        assert isinstance(world.ends(task, "FAILURE"), LeaseLost)
    else:
        world.succeeds(task)
        assert len(world.runs(task)) == 1
