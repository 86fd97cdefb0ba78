"""What the heartbeat reports is evidence: who still holds a GPU is never called idle."""

import os
import time
from types import SimpleNamespace

import pytest

from celery_gpulease.lease import board
from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.turns import Program
from celery_gpulease.settings import Settings
from celery_gpulease.worker.gpu_worker import GPUWorker
from celery_gpulease.worker.heartbeat import Heartbeat, settle
from tests.integration.ledger.world import World, device
from tests.waiting import wait_until

GPU = "node:0"


#: Seconds: what waits for a ttl is soon over.
TTL = 0.6


@pytest.fixture
def world(redis_url):
    world = World(Ledger(Settings(redis_url=redis_url, lease_ttl=TTL, heartbeat_interval=TTL / 3)))
    yield world
    world.close()
    world.ledger.client.close()


@pytest.fixture
def gpu_worker(world):
    gpu_worker = GPUWorker(world.ledger, device(GPU), ("default",), "gpu0@node")
    assert gpu_worker.join() == ["joined"]
    world.listen(GPU)
    return gpu_worker


@pytest.fixture
def claim(world, gpu_worker):
    """Of a run that has begun."""
    world.hold()
    world.ledger.claim(GPU)
    claim = world.pop()
    world.ledger.start(claim, "nonce", gpu_worker.presence.instance, acks_late=True, limit=3, stores_result=True)
    gpu_worker.begin(claim, request=SimpleNamespace(is_unknown_to_pool=lambda: True, facts={}))
    board.write_child(begun_fence=claim.fence)
    return claim


def test_a_run_that_is_over_holds_its_gpu_until_its_process_is_gone(world, gpu_worker, claim):
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


def test_where_redis_was_emptied_a_program_that_has_the_gpu_may_say_so_first(world, gpu_worker):
    program = Program("program", "run: it", "node", "default", 0)
    world.listen("program")
    claim = world.ledger.attend(program, "").claim
    world.ledger.start(claim, "nonce", "program", acks_late=False, limit=1, stores_result=False)
    heartbeat = Heartbeat(gpu_worker, on_taken=lambda: None)
    world.client.flushdb()
    heartbeat._beat()
    world.hold()
    assert world.ledger.claim(GPU).reason == "wanted"
    assert world.ledger.renew(claim) == "flushed"
    assert world.lease() == claim.token
    assert 0 < world.client.pttl(world.key("want", GPU)) <= (TTL / 3 + 2) * 1000


def test_a_run_whose_process_is_done_and_whose_end_main_never_tells_is_given_out_again(world, gpu_worker, claim):
    """As where Celery forgets it, when the connection to the broker is lost."""
    heartbeat = Heartbeat(gpu_worker, on_taken=lambda: None)
    assert heartbeat.turn() is not None
    board.write_child(done_fence=claim.fence)

    def is_given_out_again():
        heartbeat.turn()
        return world.ticket(claim.ticket).get("token") != claim.token

    wait_until(is_given_out_again, 10, "it to go back")
    assert world.ticket(claim.ticket)["deliveries"] == "2"  # its death counts
    assert not gpu_worker.is_running()
    assert world.pop().ticket == claim.ticket


def test_a_run_that_celery_has_not_forgotten_is_waited_for(world, gpu_worker, claim):
    """Its process may be at it for long to store that it could not store a success."""
    gpu_worker.executions()[0].request.is_unknown_to_pool = lambda: False
    heartbeat = Heartbeat(gpu_worker, on_taken=lambda: None)
    board.write_child(done_fence=claim.fence)
    until = time.monotonic() + 2 * TTL
    wait_until(lambda: heartbeat.turn() is not None and time.monotonic() > until, 10, "two ttl")
    assert world.ticket(claim.ticket)["token"] == claim.token


@pytest.mark.parametrize(
    ("others", "becomes"),
    [((), "waits at its old place in the line"), (("node:1",), "was given to the next free GPU at once")],
)
def test_the_log_says_what_becomes_of_a_run_that_gives_its_gpu_back(world, gpu_worker, claim, caplog, others, becomes):
    for gpu in others:
        world.join(gpu).claim()
    caplog.set_level("INFO")
    gpu_worker.is_cold = True
    gpu_worker.end(claim, "shutdown", counted=False)
    settle(gpu_worker, gpu_worker.executions()[0])
    assert caplog.messages[-1].endswith(f" gives GPU {GPU} back (shutdown), and {becomes}")
