"""Events are hints: whatever becomes of them, a free GPU is found, after one heartbeat at the latest.

A world in which the heartbeat cannot be what notices has a slow one; where it must be, nobody reconciles.
"""

import pytest

from celery_gpulease.embedded import EmbeddedServer
from tests.faults.conftest import world_on
from tests.faults.faults import Fault
from tests.faults.world import HEARTBEAT, HOST, SOON
from tests.waiting import wait_until

FLAGS = "notify-keyspace-events"
SLOW = {"gpulease_lease_ttl": 60.0, "gpulease_heartbeat_interval": 20.0, "gpulease_reconcile_interval": 3600.0}
BEATING = {"gpulease_heartbeat_interval": HEARTBEAT, "gpulease_reconcile_interval": 3600.0}


@pytest.fixture
def world(server_binary, tmp_path, monkeypatch, request):
    """A world on a server of its own, with these settings; at rest when the test has passed."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with (
        EmbeddedServer("--enable-debug-command", "yes", binary=server_binary) as server,
        world_on(server.url, tmp_path, server, **request.param) as world,
    ):
        yield world
        world.rest()


def finds_the_free_gpu(world, seconds=SOON):
    """A stranger gives a GPU back, for which a task waits."""
    world.take(0)
    task = world.send("add", 1, 2)
    world.give(0)
    world.succeeds(task, seconds=seconds)


@pytest.mark.parametrize("refusal", ["renamed", "only expiry is published", "ACL"])
def test_a_server_that_does_not_let_us_configure_it_costs_a_heartbeat(server_binary, tmp_path, monkeypatch, refusal):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    options = () if refusal == "ACL" else ("--rename-command", "CONFIG", "")
    if refusal == "only expiry is published":
        options += ("--notify-keyspace-events", "Ex")
    with EmbeddedServer(*options, binary=server_binary) as server:
        url = server.url
        if refusal == "ACL":
            url = url.replace("//", "//user:right@")
            with world_on(server.url, tmp_path) as admin:
                rights = ("on", ">right", "~*", "&*", "+@all", "-config")
                admin.client.execute_command("ACL", "SETUSER", "user", *rights)
        with world_on(url, tmp_path, **BEATING) as world:
            worker = world.worker(0)
            finds_the_free_gpu(world)
            warned = [line for line in worker.log.splitlines() if FLAGS in line]
            assert len(warned) == 1
            assert "Kgxe" in warned[0]
            world.rest()


@pytest.mark.long
@pytest.mark.parametrize("world", [BEATING], indirect=True, ids=[""])
def test_events_that_somebody_switches_off_cost_a_heartbeat_and_are_switched_on_again(world):
    world.worker(0)
    with Fault.EVENTS_OFF.during(world):
        finds_the_free_gpu(world)
        assert world.gpulease("reconcile").exit_code == 0
        assert set("Kgxe") <= set(world.client.config_get(FLAGS)[FLAGS])
        finds_the_free_gpu(world)


@pytest.mark.parametrize("world", [BEATING], indirect=True, ids=[""])
def test_the_end_of_a_strangers_lease_that_the_server_does_not_tell_costs_a_heartbeat(world):
    world.worker(0)
    with Fault.EVENTS_LATE.during(world):
        world.take(0, seconds=5)
        task = world.send("add", 1, 2)
        assert world.lease(0) == "stranger"
        world.succeeds(task)


@pytest.mark.parametrize("world", [SLOW], indirect=True, ids=[""])
def test_what_is_published_between_two_subscriptions_is_found_at_the_next(world):
    world.worker(0)
    for _ in range(3):
        world.take(0)
        task = world.send("add", 1, 2)
        with Fault.EVENTS_LOST.during(world):
            world.give(0)
        world.succeeds(task, seconds=15)


@pytest.mark.long
@pytest.mark.parametrize("world", [SLOW], indirect=True, ids=[""])
def test_a_gpu_that_becomes_free_is_noticed_among_the_events_of_others(world):
    world.worker(0)
    with Fault.EVENTS_IN_MASSES.during(world):
        for _ in range(3):
            finds_the_free_gpu(world, seconds=15)
        wait_until(lambda: world.client.info("commandstats")["cmdstat_del"]["calls"] > 10_000, SOON, "masses")
