"""REPORT: a heartbeat says that the worker lives and what it runs; a message that was lost on its way is sent again."""

import pytest


@pytest.fixture
def worker(world):
    return world.join()


def reported(world):
    return world.client.hmget(world.key("device", "node:0"), "running", "reported_ms")


def test_presence_begins_again_and_the_report_is_kept(world, worker):
    world.hold()
    worker.claim()
    run = worker.run()
    world.client.pexpire(world.key("worker", "node:0"), 100)
    assert worker.report(run) == "present"
    assert world.client.pttl(world.key("worker", "node:0")) > 29_000
    running, at = reported(world)
    assert running == run.token
    assert world.now_ms() - int(at) < 1000


def test_it_is_the_pools_pulse(world, worker):
    world.client.hset(world.key("pulse"), mapping={"at": 1, "gpu": "another"})
    worker.report()
    at, gpu = world.client.hmget(world.key("pulse"), "at", "gpu")
    assert (gpu, world.now_ms() - int(at) < 1000) == ("node:0", True)


def test_a_lapsed_presence_comes_back(world, worker):
    world.lapse_presence()
    assert worker.report() == "present"


def test_who_takes_no_work_hears_that_this_is_known(world, worker):
    worker.close()
    assert worker.report() == "closing"


def test_a_gpu_that_nobody_registered_must_join_again(world, worker):
    world.client.flushdb()
    assert worker.report() == "unregistered"
    assert world.client.exists(world.key("worker", "node:0")) == 0


def test_where_another_worker_serves_the_gpu_nothing_is_reported(world, worker):
    world.lapse_presence()
    other = world.join()
    presence = world.client.get(world.key("worker", "node:0"))
    assert worker.report() == "taken"
    assert other.presence.instance in presence
    assert world.client.get(world.key("worker", "node:0")) == presence


def test_a_message_that_was_popped_and_lost_is_routed_once_more_and_runs_once(world, worker):
    world.hold()
    worker.claim()
    lost = worker.pop()
    assert worker.report() == "rerouted"
    assert worker.report() == "present"  # it is under way
    again = worker.pop()
    assert again == lost
    assert [worker.start(again, "one"), worker.start(lost, "two")] == ["run", "twice"]


@pytest.mark.parametrize("why_not", ["grace", "in_the_queue", "about_to_run", "started", "lapsed", "strangers"])
def test_it_is_not_routed_again_without_need(world, worker, why_not):
    world.hold()
    worker.claim()
    claim = None if why_not == "in_the_queue" else worker.pop()
    if why_not == "started":
        worker.start(claim)
    if why_not in ("lapsed", "strangers"):
        world.lapse()
    if why_not == "strangers":
        world.stranger_takes()
    running = claim if why_not == "about_to_run" else None
    assert worker.report(running, grace=15 if why_not == "grace" else 0) == "present"
