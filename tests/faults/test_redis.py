"""Redis breaks under two busy GPUs and those who wait for them: what it kept goes on, what it lost is lost alone."""

from dataclasses import dataclass

import pytest

from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.exceptions import LedgerUnavailable
from tests.faults.conftest import world_on
from tests.faults.faults import Fault
from tests.faults.world import HOST, LONG, SOON, TTL, now
from tests.waiting import wait_until

#: They last for longer than a lease does.
OUTAGES = [
    Fault.REDIS_KILLED,
    Fault.REDIS_STOPPED,
    Fault.REDIS_SWAPPED_BACK,
    Fault.REDIS_FULL,
    Fault.REDIS_EVICTS,
    Fault.REDIS_READ_ONLY,
    Fault.REDIS_WITHOUT_REPLICAS,
]
#: They answer, and refuse to write.
REFUSALS = [Fault.REDIS_FULL, Fault.REDIS_WITHOUT_REPLICAS]
BLINKS = [pytest.param(Fault.REDIS_CLIENTS_KILLED, marks=pytest.mark.long), Fault.REDIS_SCRIPTS_FLUSHED]
LOSSES = [
    pytest.param(Fault.REDIS_KILLED, marks=pytest.mark.long),
    Fault.REDIS_FLUSHED,
    pytest.param(Fault.REDIS_SWAPPED, marks=pytest.mark.long),
]


def named(fault):
    return fault.name


@dataclass
class House:
    """What was sent to a world: two tasks run, the others wait."""

    running: list[str]
    waiting: list[str]

    @property
    def all(self) -> list[str]:
        return self.running + self.waiting


@pytest.fixture
def kept(server_binary, tmp_path, monkeypatch):
    """A world on a server that writes everything to disk."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    server = EmbeddedServer("--appendonly", "yes", binary=server_binary)
    with server, world_on(server.url, tmp_path, server) as world:
        yield world
        world.rest()


@pytest.fixture
def forgetful(own_server, tmp_path, monkeypatch):
    """A world on a server that writes nothing to disk."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(own_server.url, tmp_path, own_server) as world:
        yield world
        world.rest()


def full_house(world) -> House:
    """Two GPUs are busy, one with a task that may run only once; others wait, pinned, in the line, in the schedule."""
    for gpu in (0, 1):
        world.worker(gpu)
    running = [world.send("wait_for", "go"), world.send("wait_for_once", "go")]
    for task in running:
        world.started(task)
    waiting = [world.send("add", 1, 1), world.send("add", 2, 2, gpu=f"{HOST}:1"), world.send("add", 3, 3, countdown=2)]
    return House(running, waiting)


def leases(world, gpus=2):
    return [world.lease(gpu) for gpu in range(gpus)]


def outlast(seconds=2 * TTL):
    began = now()
    wait_until(lambda: now() > began + seconds, 2 * seconds, "time to pass")


def journal_of(world, task):
    return [fields["what"] for _, fields in world.client.xrange("gpu:journal") if fields["task_id"] == task]


def goes_on(world, house):
    """Both runs have their own leases again, and go on to their end; the others follow; nothing ran twice."""
    wait_until(lambda: all(leases(world)), SOON, "both runs to have their leases")
    assert [journal_of(world, task).count("requeued") for task in house.running] == [0, 0]
    world.open("go")
    world.succeeds(*house.all, world.send("add", 4, 4))
    assert [len(world.runs(task)) for task in house.all] == [1] * 5


@pytest.mark.long
@pytest.mark.parametrize("fault", OUTAGES, ids=named)
def test_an_outage_longer_than_the_ttl_reaps_nobody_and_everything_goes_on(kept, fault):
    world, house = kept, full_house(kept)
    tokens = leases(world)
    with fault.during(world):
        outlast()
        if fault is Fault.REDIS_FULL:
            assert leases(world) == tokens
    goes_on(world, house)
    assert all(journal_of(world, task).count("regained") < 50 for task in house.running)  # not in a loop


@pytest.mark.long
@pytest.mark.parametrize("fault", REFUSALS, ids=named)
def test_what_ends_where_nothing_can_be_stored_has_one_end_and_senders_are_told(kept, fault):
    world, house = kept, full_house(kept)
    with fault.during(world):
        with pytest.raises(LedgerUnavailable):
            world.app.send_task("proj.add", (5, 5), pool="default")
        world.open("go")
        for task in house.running:
            wait_until(lambda task=task: world.runs(task)[0].end, SOON, "the run to end")
        outlast()
    again, once = house.running
    world.succeeds(*house.waiting)
    world.ends(once, "FAILURE")  # LeaseLost, or that error, by who finds that it can be stored again
    world.wait(lambda: world.state(again) in ("SUCCESS", "FAILURE"), LONG, again)
    assert (world.state(again), len(world.runs(again))) in {("SUCCESS", 2), ("FAILURE", 1)}
    assert [len(world.runs(task)) for task in (once, *house.waiting)] == [1, 1, 1, 1]


@pytest.mark.parametrize("fault", BLINKS, ids=named)
def test_what_is_over_at_once_costs_nobody_anything(kept, fault):
    world, house = kept, full_house(kept)
    for _ in range(3):
        with fault.during(world):
            pass
    goes_on(world, house)


@pytest.mark.long
def test_with_100_ms_for_each_command_everything_is_slower_and_nothing_is_lost(proxied):
    world, house = proxied, full_house(proxied)
    with Fault.REDIS_SLOW.during(world):
        outlast()
        goes_on(world, house)


@pytest.mark.parametrize("fault", LOSSES, ids=named)
def test_what_runs_ends_under_its_lease_though_redis_lost_everything_and_the_next_tasks_run(forgetful, fault):
    world, house = forgetful, full_house(forgetful)
    with fault.during(world):
        pass
    following = [world.send("add", n, n) for n in range(3)]
    wait_until(lambda: all(leases(world)), SOON, "both runs to have their leases")
    outlast()
    assert [world.runs(task) for task in following] == [[], [], []]
    world.open("go")
    world.succeeds(*house.running, *following)
    for task in house.waiting:
        world.sent.remove(task)
    assert [len(world.runs(task)) for task in house.all] == [1, 1, 0, 0, 0]
    assert [world.state(task) for task in house.waiting] == ["PENDING"] * 3


@pytest.mark.long
def test_a_redis_that_comes_back_as_it_was_before_they_began_stops_nothing_that_runs(forgetful):
    """Of the default, which saves now and then, and so starts again with an old snapshot."""
    world = forgetful
    for gpu in (0, 1, 2):
        world.worker(gpu)
    earlier = [world.send("wait_for", "first") for _ in range(3)]
    for task in earlier:
        world.started(task)
    known = [world.send("wait_for", "go"), world.send("wait_for_once", "go")]
    with Fault.REDIS_FORGETS.during(world):
        world.open("first")
        world.succeeds(*earlier)
        unknown = world.send("wait_for", "go")
        for task in (*known, unknown):
            world.started(task)
    wait_until(lambda: all(leases(world, 3)), SOON, "all runs to have their leases")
    outlast()
    world.open("go")
    world.succeeds(*known, unknown, *earlier)
    assert [len(world.runs(task)) for task in (*known, unknown)] == [1, 1, 1]
    assert [len(world.runs(task)) for task in earlier] == [2, 2, 2]


@pytest.mark.long
def test_a_redis_that_comes_back_empty_offers_no_gpu_before_its_worker_has_said_what_it_runs(
    own_server, tmp_path, monkeypatch
):
    """The heartbeat is far too slow to say it: Celery, which connects again, is what makes the worker join."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    slow = {"gpulease_lease_ttl": 60.0, "gpulease_heartbeat_interval": 20.0}
    with world_on(own_server.url, tmp_path, own_server, **slow) as world:
        worker = world.worker(0)
        task = world.send("wait_for", "go")
        world.started(task)
        with Fault.REDIS_KILLED.during(world):
            pass
        following = world.send("add", 1, 2)
        wait_until(lambda: worker.log.count("Connected to") == 2, SOON, "Celery to connect again")
        wait_until(lambda: world.client.exists(f"gpu:device:{HOST}:0"), SOON, "the worker to join again")
        assert world.lease(0)
        world.open("go")
        world.succeeds(task, following)
        assert [len(world.runs(one)) for one in (task, following)] == [1, 1]
        world.rest()
