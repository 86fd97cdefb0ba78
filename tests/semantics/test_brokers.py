"""Any broker that Celery knows, with the leases in a Redis of their own: what is held, claimed and run is the same."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from celery_gpulease.embedded import EmbeddedServer
from tests.faults.conftest import world_on
from tests.faults.world import HOST, PROJECT as WORLDS_PROJECT
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("rabbitmq")

PATH = os.pathsep.join([str(WORLDS_PROJECT), str(Path(__file__).parent / "project")])


def test_x(rabbitmq, redis_url, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(redis_url, tmp_path, broker_url=rabbitmq.url, gpulease_redis_url=redis_url) as world:
        assert world.ledger.route == "gpu:routed:"
        world.worker(0, PYTHONPATH=PATH)
        t = world.send("add", 1, 2)
        assert world.ends(t, "SUCCESS") == 3
        ts = [world.send("add", 1, i) for i in range(20)]
        world.succeeds(*ts)
        world.rest()
        print(world.processes._started[0].log)
