"""Redis fails over: work goes on, and what the new master does not know makes no two holders of one GPU."""

import time

import pytest

from tests.faults.conftest import world_on
from tests.faults.faults import Fault
from tests.faults.world import HOST, LONG, SOON
from tests.processes import Processes
from tests.sentinel import Sentinels
from tests.waiting import wait_until

# The world's own connections lose their server too
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")]


@pytest.fixture
def world(server_binary, tmp_path, monkeypatch):
    """A world whose broker, results and leases are behind sentinels; at rest when the test has passed."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    folder = tmp_path / "sentinels"
    folder.mkdir()
    with (
        Processes(folder, cwd=folder) as processes,
        Sentinels(folder, processes, server_binary) as sentinels,
        # Celery's own default for a result backend that is silent is two minutes
        world_on(sentinels.url, tmp_path, sentinels.master, redis_socket_timeout=5.0, **sentinels.conf) as world,
    ):
        world.client.close()
        world.client, world.sentinels = sentinels.client, sentinels
        yield world
        world.rest()


@pytest.mark.parametrize(
    "fault", [Fault.MASTER_KILLED, Fault.MASTER_FROZEN, Fault.MASTER_DEMOTED], ids=lambda fault: fault.name
)
def test_work_goes_on_when_the_replica_becomes_the_master(world, fault):
    world.worker(0)
    running, waiting = world.send("wait_for", "go"), world.send("add", 1, 2)
    run = world.started(running)
    assert world.client.wait(1, 5000) == 1
    lease = world.lease(0)
    began = time.monotonic()
    with fault.during(world):
        world.sentinels.until_promoted()
        promoted = time.monotonic()
        wait_until(lambda: world.lease(0) == lease, SOON, "the run to have its lease still")
        world.open("go")
        # kombu takes 49 s to find its connection to a frozen master dead
        world.succeeds(running, waiting, world.send("add", 3, 4), seconds=2 * LONG)
    print(f"{fault.name}: promoted after {promoted - began:.1f} s, all done {time.monotonic() - promoted:.1f} s later")
    assert [one.fence for one in world.runs(running)] == [run.fence]


def test_a_run_that_the_replica_never_heard_of_goes_on_and_the_next_task_has_a_greater_fence(world):
    world.worker(0)
    world.sentinels.cut_replica()
    forgotten = world.send("wait_for", "go")
    run = world.started(forgotten)
    with Fault.MASTER_KILLED.during(world):
        world.sentinels.until_promoted()
        following = world.send("add", 1, 2)
        wait_until(lambda: world.lease(0), LONG, "the run to have its lease back")
        world.open("go")
        world.succeeds(forgotten, following)
    assert len(world.runs(forgotten)) == 1
    assert world.started(following).fence > run.fence


def test_a_lease_that_was_never_replicated_is_lost_by_its_run_and_its_task_runs_again_later(world):
    world.worker(0)
    world.take(0, seconds=600)
    first, second = world.send("wait_for", "go"), world.send("add", 1, 2)
    world.sentinels.cut_replica()
    world.give(0)  # which the replica never hears of
    run = world.started(first)
    with Fault.MASTER_KILLED.during(world):
        world.sentinels.until_promoted()
        wait_until(lambda: world.runs(first)[0].end, LONG, "the run to be stopped: another has the lease")
        assert world.lease(0) == "stranger"
        assert world.runs(second) == []
        world.give(0)
        again = world.started(first, 2)
        assert again.fence > run.fence
        world.open("go")
        world.succeeds(first, second)
