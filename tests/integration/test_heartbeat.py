"""What the heartbeat reports is evidence: who still holds a GPU is never called idle."""

import os

import pytest

from celery_gpulease.ledger import Ledger
from celery_gpulease.settings import Settings
from celery_gpulease.worker.gpu_worker import GPUWorker
from celery_gpulease.worker.heartbeat import Heartbeat
from tests.integration.ledger.world import World, device

GPU = "node:0"


@pytest.fixture
def world(redis_url):
    world = World(Ledger(Settings(redis_url=redis_url)))
    yield world
    world.close()
    world.ledger.client.close()


def test_a_run_that_is_over_holds_its_gpu_until_its_process_is_gone(world):
    gpu_worker = GPUWorker(world.ledger, device(GPU), ("default",), "gpu0@node")
    assert gpu_worker.join() == ["joined"]
    world.listen(GPU)
    world.hold()
    world.ledger.claim(GPU)
    claim = world.pop()
    world.ledger.start(claim, "nonce", gpu_worker.presence.instance, acks_late=True, limit=3, stores_result=True)
    gpu_worker.begin(claim, request=None)
    heartbeat = Heartbeat(gpu_worker, on_taken=lambda: None)
    gpu_worker.end(claim, "killed", pid=os.getpid())
    heartbeat.turn()
    assert world.client.hget(world.key("device", GPU), "running") == claim.token
    assert world.lease() == claim.token


def closing(world):
    return bool(world.client.hexists(world.key("closed", GPU), "closing"))


def test_what_redis_knows_of_a_gpu_that_is_closed_is_put_right_by_its_worker(world):
    """Redis was away when it was told, or it was changed by hand."""
    gpu_worker = GPUWorker(world.ledger, device(GPU), ("default",), "gpu0@node")
    gpu_worker.join()
    heartbeat = Heartbeat(gpu_worker, on_taken=lambda: None)
    world.client.hset(world.key("closed", GPU), "closing", 1)
    heartbeat._beat()
    assert not closing(world)
    gpu_worker.close("test")
    world.client.hdel(world.key("closed", GPU), "closing")
    heartbeat._beat()
    assert closing(world)
    gpu_worker.open("test")
    assert not closing(world)
