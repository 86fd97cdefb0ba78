"""LEAVE: a worker that stops gives back what it did not start, and at its end what still ran, uncounted."""

import json

import pytest


@pytest.fixture
def worker(world):
    return world.join()


def test_closing_it_gets_nothing_new_and_goes_on_with_its_job(world, worker):
    world.hold()
    worker.claim()
    run = worker.run()
    worker.close()
    world.ledger.release(run)
    waiting = world.hold()
    assert worker.claim().reason == "closing"
    assert world.states(run.ticket, waiting) == ["ended", "pending"]


@pytest.mark.parametrize("stop", ["close", "leave"])
@pytest.mark.parametrize("popped", [True, False])
def test_what_was_routed_and_not_started_goes_back_uncounted_and_to_another(world, worker, stop, popped):
    ticket = world.hold()
    worker.claim()
    other = world.join("node:1")
    other.claim()
    if popped:
        worker.pop()
    getattr(worker, stop)()
    claim = other.pop()
    assert (claim.ticket, claim.delivery, worker.pop()) == (ticket, 1, None)
    assert world.lease("node:0") is None


def test_gone_it_is_offline_and_what_still_ran_goes_back_uncounted(world, worker):
    ticket = world.hold()
    worker.claim()
    worker.run()
    worker.leave()
    found = world.ticket(ticket)
    assert (found["state"], found["deliveries"]) == ("pending", "0")
    assert world.lease() is None
    assert world.client.exists(world.key("worker", "node:0")) == 0


def test_what_may_run_only_once_fails(world, worker):
    ticket = world.hold()
    worker.claim()
    worker.run(acks_late=False)
    worker.leave()
    assert world.ticket(ticket)["why"] == "lease_lost"


def test_a_superseded_run_ends(world, worker):
    ticket = world.hold()
    worker.claim()
    retry = world.hold(run=worker.run())
    worker.leave()
    assert world.states(ticket, retry) == ["ended", "pending"]


def test_leaving_again_changes_nothing(world, worker):
    world.hold()
    worker.claim()
    worker.run()
    worker.leave()
    before = world.everything()
    worker.leave()
    assert world.everything() == before


def test_another_worker_of_the_gpu_is_not_closed(world, worker):
    world.lapse_presence()
    other = world.join()
    ticket = world.hold()
    other.claim()
    worker.close()
    worker.leave()
    assert world.state(ticket) == "claimed"
    world.ledger.release(other.run())
    assert other.claim() is None


def test_gone_it_leaves_no_claim_in_its_queue_also_none_that_kombu_has_put_back(world, worker):
    queue = world.ledger.route_to("node:0")
    ticket = world.hold()
    worker.claim()
    message = json.loads(world.client.rpop(queue))
    worker.close()
    by_hand = json.dumps({"args": []})
    world.client.lpush(queue, by_hand, json.dumps({**message, "redelivered": True}))
    worker.leave()
    assert world.client.lrange(queue, 0, -1) == [by_hand]
    assert world.state(ticket) == "pending"
    world.client.delete(queue)
