"""DEFER: a claim that may not start yet waits in the schedule, and keeps its place; its GPU is free."""

import pytest

HOUR_MS = 3_600_000


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def claim(world, worker):
    world.hold()
    worker.claim()
    return worker.pop()


def defer(world, claim, seconds=60):
    assert world.ledger.defer(claim, seconds) == "scheduled"


def test_it_waits_uncounted_until_it_is_due_and_the_gpu_is_free(world, worker, claim):
    before = world.now_ms()
    defer(world, claim)
    found = world.ticket(claim.ticket)
    assert (found["state"], found["deliveries"], "returns" in found) == ("scheduled", "0", False)
    assert not found.keys() & {"gpu", "token"}
    assert before + 60_000 <= world.client.zscore(world.key("scheduled"), claim.ticket) <= world.now_ms() + 60_000
    assert world.client.hgetall(world.key("scheduled_count")) == {"default": "1"}
    assert (world.lease(), world.claim_of(), world.free()) == (None, {}, ["node:0"])
    assert world.journal()[-1] == "deferred"


def test_less_than_a_millisecond_is_one(world, claim):
    defer(world, claim, seconds=1e-9)
    assert world.client.zscore(world.key("scheduled"), claim.ticket) <= world.now_ms() + 1


def test_the_next_in_line_gets_the_gpu(world, worker, claim):
    next_one = world.hold()
    defer(world, claim)
    assert worker.claim() == next_one


def test_promoted_it_stands_at_its_old_place(world, claim):
    score = world.ticket(claim.ticket)["score"]
    later, urgent = world.hold(), world.hold(priority=-1)
    defer(world, claim)
    world.drained()
    world.make_due(claim.ticket)
    assert world.ledger.promote() == (1, 0)
    assert world.line() == [urgent, claim.ticket, later]
    assert world.ticket(claim.ticket)["score"] == score


def test_promoted_it_is_claimed_for_a_free_gpu_as_its_first_delivery(world, worker, claim):
    defer(world, claim)
    world.make_due(claim.ticket)
    world.ledger.promote()
    again = worker.pop()
    assert (again.ticket, again.delivery) == (claim.ticket, 1)
    assert again.fence > claim.fence
    assert worker.start(claim) == "stale"
    assert worker.start(again) == "run"


def test_a_pinned_one_goes_back_to_its_gpus_line(world, worker):
    ticket = world.hold(pin="node:0")
    worker.claim()
    defer(world, worker.pop())
    world.drained()
    world.make_due(ticket)
    world.ledger.promote()
    assert world.client.zrange(world.key("pinned", "node:0"), 0, -1) == [ticket]


def test_it_still_expires_when_it_should(world, worker):
    expires_ms = world.now_ms() + HOUR_MS
    ticket = world.hold(expires_ms=expires_ms)
    worker.claim()
    assert world.client.zscore(world.key("expiring"), ticket) is None
    defer(world, worker.pop())
    assert world.client.zscore(world.key("expiring"), ticket) == expires_ms
    world.make_expired(ticket)
    assert world.ledger.promote() == (0, 1)
    assert world.ticket(ticket)["why"] == "expired"


STALE = {
    "started": lambda world, worker, claim: worker.start(claim),
    "deferred_before": lambda world, worker, claim: world.ledger.defer(claim, 60),
    "reaped": lambda world, worker, claim: (worker.die(), world.lapse(), world.ledger.reap("node:0")),
    "claimed_again": lambda world, worker, claim: world.ledger.requeue(claim, "test", counted=False),
    "ended": lambda world, worker, claim: world.ledger.release(claim),
    "vanished": lambda world, worker, claim: (world.ledger.release(claim), world.client.delete(world.key("ended"))),
}


@pytest.mark.parametrize("over", STALE.values(), ids=STALE.keys())
def test_what_is_no_claim_any_more_is_not_deferred(world, worker, claim, over):
    over(world, worker, claim)
    before = world.everything()
    assert world.ledger.defer(claim, 60) == "stale"
    assert world.everything() == before


def test_a_lapsed_lease_is_no_hindrance(world, claim):
    world.lapse()
    defer(world, claim)
    assert (world.claim_of(), world.free()) == ({}, ["node:0"])


def test_a_strangers_lease_is_left_alone(world, claim):
    world.lapse()
    world.stranger_takes()
    defer(world, claim)
    assert (world.lease(), world.claim_of(), world.free()) == ("stranger", {}, [])


def test_a_message_that_was_routed_twice_is_stale(world, worker, claim):
    assert worker.report(grace=0) == "rerouted"
    defer(world, claim)
    copy = worker.pop()
    assert world.ledger.defer(copy, 60) == "stale"
    assert worker.start(copy) == "stale"


def test_it_may_be_deferred_for_ever_and_is_never_given_out_too_often(world, worker, claim):
    for _ in range(20):
        defer(world, claim)
        world.make_due(claim.ticket)
        world.ledger.promote()
        claim = worker.pop()
    assert worker.start(claim, limit=1) == "run"
    assert world.ticket(claim.ticket)["deliveries"] == "1"


def test_one_worker_is_told_when_it_will_be_due(world):
    worker = world.join()
    worker.report()
    world.hold()
    worker.claim()
    world.heard()
    world.ledger.defer(worker.pop(), 5)
    assert world.heard() == [("gpu:here:node:0", "due")]
