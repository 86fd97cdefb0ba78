"""JOIN: one worker per GPU, one name per device; what a GPU's worker says of it replaces what was said before."""

import json

import pytest


def test_a_gpu_is_registered_by_both_names(world):
    world.join("GPU-7", ("a", "b"))
    device = world.client.hgetall(world.key("device", "GPU-7"))
    assert (device["alias"], device["index"], device["pools"]) == ("node:3", "3", "a,b")
    assert (device["ttl_ms"], device["heartbeat_ms"]) == ("30000", "10000")
    assert world.client.hgetall(world.key("names")) == {"GPU-7": "GPU-7", "node:3": "GPU-7"}


def test_joining_again_is_harmless(world):
    worker = world.join()
    assert worker.join() == ["joined"]
    assert worker.claim() is None


def test_a_second_worker_is_told_who_was_first(world):
    first, second = world.join(), world.worker()
    word, presence, *_ = second.join()
    assert word == "in_use"
    assert json.loads(presence)["instance"] == first.presence.instance


def test_a_second_worker_takes_over_when_the_firsts_presence_has_lapsed(world):
    world.join().die()
    world.lapse_presence()
    assert world.worker().join() == ["joined"]


@pytest.mark.parametrize(("first", "second"), [("GPU-7", "node:3"), ("node:3", "GPU-7")])
def test_one_device_is_not_served_under_two_names(world, first, second):
    world.join(first)
    assert world.worker(second).join() == ["named", first]
    assert world.client.zrange(world.key("gpus"), 0, -1) == [first]


def test_a_name_whose_worker_is_gone_is_given_to_the_next(world):
    world.join("node:3").leave()
    assert world.worker("GPU-7").join() == ["joined"]
    assert world.client.hget(world.key("names"), "node:3") == "GPU-7"


def test_pools_that_it_no_longer_serves_do_not_believe_it_free(world):
    worker = world.join(pools=("old", "kept"))
    worker.claim()
    worker.leave()
    world.join(pools=("kept", "new")).claim()
    assert (world.free("old"), world.free("kept"), world.free("new")) == ([], ["node:0"], ["node:0"])


def test_a_join_opens_what_closing_closed_and_not_what_was_drained(world):
    worker = world.join()
    worker.close()
    worker.leave()
    world.ledger.drain("node:0", drained=True)
    worker = world.join()
    assert worker.claim().reason == "drain"
    world.ledger.drain("node:0", drained=False)
    assert worker.claim() is None


def test_a_predecessors_run_keeps_its_lease_until_it_lapses(world):
    worker = world.join()
    ticket = world.hold()
    worker.claim()
    run = worker.run()
    worker.die()
    world.lapse_presence()
    newcomer = world.join()
    assert newcomer.claim().reason == "leased"
    world.lapse()
    world.ledger.reap("node:0")
    again = newcomer.pop()
    assert (again.ticket, again.delivery) == (ticket, 2)
    assert again.token != run.token
