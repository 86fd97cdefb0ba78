"""REQUEUE: a run or a claim that is over without an end goes back to its old place, or to its end."""

import pytest


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def claim(world, worker):
    world.hold()
    worker.claim()
    return worker.pop()


def test_it_stands_at_its_old_place(world, worker, claim):
    later = world.hold()
    worker.start(claim)
    world.drained()
    assert world.ledger.requeue(claim, "rejected", counted=False) == "pending"
    assert world.line() == [claim.ticket, later]
    assert world.lease() is None


def test_a_free_gpu_gets_it_again_at_once(world, worker, claim):
    worker.start(claim)
    assert world.ledger.requeue(claim, "rejected", counted=False) == "claimed"
    again = worker.pop()
    assert again.ticket == claim.ticket
    assert again.fence > claim.fence


@pytest.mark.parametrize(("is_started", "counted", "delivery"), [(False, True, 1), (True, False, 1), (True, True, 2)])
def test_only_the_death_of_a_run_counts(world, worker, claim, is_started, counted, delivery):
    if is_started:
        worker.start(claim)
    world.ledger.requeue(claim, "why", counted=counted)
    assert worker.pop().delivery == delivery


def test_at_its_last_death_it_fails(world, worker, claim):
    worker.start(claim, limit=1)
    assert world.ledger.requeue(claim, "child killed", counted=True) == "ending"
    assert world.ticket(claim.ticket)["why"] == "lease_lost"


def test_what_may_run_only_once_fails_at_its_first_death(world, worker, claim):
    worker.start(claim, acks_late=False)
    assert world.ledger.requeue(claim, "child killed", counted=True) == "ending"


def test_a_superseded_run_ends(world, worker, claim):
    worker.start(claim)
    world.hold(run=claim)
    assert world.ledger.requeue(claim, "child killed", counted=False) == "ended"


def test_a_robbed_run_goes_back_when_its_child_is_gone(world, worker, claim):
    worker.start(claim)
    world.lapse()
    world.stranger_takes()
    world.ledger.renew(claim)
    assert world.ledger.requeue(claim, "child killed", counted=True) == "pending"
    assert world.lease() == "stranger"


@pytest.mark.parametrize(("limit", "state"), [(2, "claimed"), (1, "ending")])
def test_a_forced_run_goes_back_when_its_child_is_gone_and_counts(world, worker, claim, limit, state):
    worker.start(claim, limit=limit)
    world.ledger.force("node:0")
    world.ledger.renew(claim)
    assert world.ledger.requeue(claim, "lost", counted=True) == state
    assert world.ticket(claim.ticket)["deliveries"] == ("2" if state == "claimed" else "1")


def test_a_forced_run_that_may_run_only_once_fails(world, worker, claim):
    worker.start(claim, acks_late=False)
    world.ledger.force("node:0")
    assert world.ledger.requeue(claim, "lost", counted=True) == "ending"


def test_doing_it_again_changes_nothing(world, worker, claim):
    worker.start(claim)
    world.ledger.requeue(claim, "rejected", counted=False)
    again = worker.pop()
    worker.start(again)
    before = world.everything()
    assert world.ledger.requeue(claim, "rejected", counted=False) == "stale"
    assert world.everything() == before
