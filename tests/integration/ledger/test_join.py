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
    word, name, presence, *_ = world.worker(second).join()
    assert (word, name, json.loads(presence)["worker"]) == ("named", first, "gpu@node")
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


# the caller knows that a worker is dead: nothing is waited for


@pytest.fixture
def dead(world):
    """A worker that was killed a moment ago; nothing of what it had has lapsed."""
    return world.join()


def taken_over(world, dead, other=""):
    dead.die()
    newcomer = world.worker()
    assert newcomer.join(other or dead.presence.instance) == ["joined"]
    return newcomer


def test_a_dead_workers_gpu_is_taken_over_whatever_is_left_of_its_presence(world, dead):
    newcomer = taken_over(world, dead)
    assert newcomer.presence.instance in world.client.get(world.key("worker", "node:0"))
    assert dead.report() == "taken"
    assert newcomer.claim() is None


def test_of_two_newcomers_one_takes_over_and_the_other_is_told_of_it(world, dead):
    newcomer, other = taken_over(world, dead), world.worker()
    word, presence, *_ = other.join(dead.presence.instance)
    assert (word, json.loads(presence)["instance"]) == ("in_use", newcomer.presence.instance)


def test_another_than_the_dead_one_is_in_use(world, dead):
    before = world.everything()
    word, presence, *_ = world.worker().join("somebody else")
    assert (word, json.loads(presence)["instance"]) == ("in_use", dead.presence.instance)
    assert world.everything() == before


def test_what_a_dead_worker_ran_goes_back_to_its_place_and_counts(world, dead):
    ticket, later = world.hold(), world.hold()
    dead.claim()
    run = dead.run()
    newcomer = taken_over(world, dead)
    assert world.line() == [ticket, later]
    assert (world.lease(), world.claim_of()) == (None, {})
    newcomer.claim()
    again = newcomer.pop()
    assert (again.ticket, again.delivery) == (ticket, 2)
    assert again.fence > run.fence


def test_another_free_gpu_gets_what_a_dead_worker_ran_at_once(world, dead):
    ticket = world.hold()
    dead.claim()
    dead.run()
    world.join("node:1").claim()
    taken_over(world, dead)
    assert world.pop("node:1").ticket == ticket


def test_what_may_run_only_once_fails_when_its_dead_workers_gpu_is_taken_over(world, dead):
    ticket = world.hold()
    dead.claim()
    dead.run(acks_late=False)
    taken_over(world, dead)
    assert (world.state(ticket), world.ticket(ticket)["why"]) == ("ending", "lease_lost")
    assert world.lease() is None


def test_what_a_dead_worker_did_not_start_goes_back_uncounted_and_its_message_goes(world, dead):
    ticket = world.hold()
    dead.claim()
    taken_over(world, dead)
    assert world.pop() is None
    found = world.ticket(ticket)
    assert (found["state"], found["deliveries"], found["returns"]) == ("pending", "0", "1")


def test_a_dead_workers_tail_is_taken_up_and_counts(world, dead):
    ticket = world.hold()
    dead.claim()
    world.ledger.give_back(dead.run())
    newcomer = taken_over(world, dead)
    newcomer.claim()
    assert (newcomer.pop().ticket, world.ticket(ticket)["deliveries"]) == (ticket, "2")


def test_a_superseded_run_of_a_dead_worker_does_not_run_again(world, dead):
    world.hold()
    dead.claim()
    run = dead.run()
    retry = world.hold(run=run)
    taken_over(world, dead)
    assert world.states(run.ticket, retry) == ["ended", "pending"]


def test_a_strangers_lease_outlives_the_dead_worker_whom_it_robbed(world, dead):
    ticket = world.hold()
    dead.claim()
    dead.run()
    world.lapse()
    world.stranger_takes()
    newcomer = taken_over(world, dead)
    assert (world.lease(), world.state(ticket)) == ("stranger", "pending")
    assert newcomer.claim().reason == "leased"


def test_an_outage_gives_no_grace_to_who_is_certainly_dead(world, dead):
    ticket = world.hold()
    dead.claim()
    dead.run()
    world.outage()
    taken_over(world, dead)
    assert world.state(ticket) == "pending"


def test_a_run_that_another_than_the_dead_worker_started_keeps_its_lease(world):
    first = world.join()
    ticket = world.hold()
    first.claim()
    run = first.run()
    world.lapse_presence()  # it is cut off, and runs on
    second = world.join()
    newcomer = taken_over(world, second)
    assert (world.lease(), world.state(ticket)) == (run.token, "started")
    assert newcomer.claim().reason == "leased"
    assert world.ledger.renew(run) == "renewed"


def test_a_run_that_was_given_up_for_dead_and_came_back_is_still_its_workers(world, dead):
    ticket = world.hold()
    dead.claim()
    run = dead.run()
    world.lapse()
    world.ledger.drain("node:0", drained=True)
    world.ledger.reap("node:0")
    assert world.ledger.renew(run) == "regained"
    taken_over(world, dead)
    assert world.state(ticket) == "pending"


def test_a_reply_that_was_lost_changes_nothing(world, dead):
    world.hold()
    dead.claim()
    dead.run()
    newcomer = taken_over(world, dead)
    before = {name: world.everything()[name] for name in ("gpu:counters", "gpu:journal", "gpu:pending:default")}
    assert newcomer.join(dead.presence.instance) == ["joined"]
    assert {name: world.everything()[name] for name in before} == before


def test_a_tail_without_a_presence_is_taken_up_by_who_joins(world, dead):
    ticket = world.hold()
    dead.claim()
    world.ledger.give_back(dead.run())
    dead.die()
    world.lapse_presence()
    newcomer = world.join()
    newcomer.claim()
    assert newcomer.pop().ticket == ticket


def test_a_worker_that_stops_is_told_from_one_that_serves(world, dead):
    assert world.worker().join()[3] == "0"
    dead.close()
    assert world.worker().join()[3] == "1"


def test_a_dead_workers_run_is_taken_up_although_its_presence_has_lapsed_and_nobody_else_beats(world, dead):
    ticket = world.hold()
    dead.claim()
    dead.run()
    dead.die()
    world.lapse_presence()
    world.lapse()
    world.outage()
    assert dead.presence.instance in world.ledger.last_presence("node:0")
    assert world.worker().join(dead.presence.instance) == ["joined"]
    assert world.state(ticket) == "pending"


def test_who_left_is_not_remembered(world):
    world.join().leave()
    assert world.ledger.last_presence("node:0") is None
