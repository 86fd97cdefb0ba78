"""DISPATCH: a free GPU with a living worker gets its next task, whoever saw that it had been forgotten."""

import pytest


@pytest.fixture
def worker(world):
    """It is free, and in no index: every event was missed."""
    return world.join()


def test_a_gpu_that_was_forgotten_gets_the_first_in_line(world, worker):
    first, second = world.hold(), world.hold()
    assert world.states(first, second) == ["pending", "pending"]
    assert world.ledger.dispatch("node:0") == "claimed"
    claim = worker.pop()
    assert (claim.ticket, claim.token) == (first, world.lease())
    assert world.states(first, second) == ["claimed", "pending"]


def test_a_second_reconciler_claims_nothing_more(world, worker):
    world.hold(), world.hold()
    world.ledger.dispatch("node:0")
    before = world.everything()
    assert world.ledger.dispatch("node:0") == "closed"
    assert world.everything() == before


def test_where_nobody_waits_the_gpu_is_known_to_be_free(world, worker):
    assert world.ledger.dispatch("node:0") == "idle"
    assert world.free() == ["node:0"]
    ticket = world.hold()
    assert worker.pop().ticket == ticket


def test_its_own_line_comes_first(world, worker):
    world.hold()
    pinned = world.hold(pin="node:0")
    world.ledger.dispatch("node:0")
    assert worker.pop().ticket == pinned


CLOSED = {
    "drained": lambda world, worker: world.drained(),
    "closing": lambda world, worker: worker.close(),
    "leased_by_a_stranger": lambda world, worker: world.stranger_takes(),
    "wanted": lambda world, worker: world.want(),
    "quarantined": lambda world, worker: world.client.hset(
        world.key("closed", "node:0"), mapping={"quarantine": "fell off the bus", "until_ms": world.now_ms() + 60_000}
    ),
    "its_worker_was_killed": lambda world, worker: worker.die(),
    "nobody_has_heard_of_its_worker": lambda world, worker: world.lapse_presence(),
    "its_worker_has_left": lambda world, worker: worker.leave(),
}


@pytest.mark.parametrize("close", CLOSED.values(), ids=CLOSED.keys())
def test_a_closed_gpu_gets_nothing(world, worker, close):
    close(world, worker)
    ticket = world.hold()
    assert world.ledger.dispatch("node:0") == "closed"
    assert (world.state(ticket), world.free(), worker.pop()) == ("pending", [], None)


def test_an_unknown_gpu_gets_nothing(world):
    assert world.ledger.dispatch("nowhere:0") == "closed"


@pytest.mark.parametrize("started", [True, False])
def test_a_lapsed_lease_that_nobody_reaped_yet_is_no_free_gpu(world, worker, started):
    world.hold()
    worker.claim()
    if started:
        worker.run()
    world.lapse()
    waiting = world.hold()
    assert world.ledger.dispatch("node:0") == "closed"
    assert world.state(waiting) == "pending"
