"""GIVE_BACK: a run gives its GPU back early, and runs on without it."""

import pytest

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.ledger.answers import Closed


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def claim(world, worker):
    world.hold()
    worker.claim()
    return worker.pop()


@pytest.fixture
def run(worker, claim):
    assert worker.start(claim) == "run"
    return claim


@pytest.fixture
def tail(world, run):
    assert world.ledger.give_back(run) == "tail"
    return run


def test_the_lease_is_gone_and_the_run_is_a_tail(world, tail):
    assert world.lease() is None
    assert (world.state(tail.ticket), world.ticket(tail.ticket)["why"]) == ("tail", "early")
    assert world.claim_of()["state"] == "tail"
    assert not world.ledger.is_lost(tail)
    assert world.journal()[-1] == "given_back"


def test_giving_back_again_changes_nothing(world, tail):
    before = world.everything()
    assert world.ledger.give_back(tail) == "tail"
    assert world.everything() == before


def test_its_heartbeat_does_not_take_the_gpu_again(world, tail):
    assert world.ledger.renew(tail) == "tail"
    assert world.lease() is None


def test_its_release_ends_it_and_the_gpu_is_free(world, worker, tail):
    assert world.ledger.release(tail) == "released"
    assert world.state(tail.ticket) == "ended"
    assert (world.claim_of(), world.free()) == ({}, ["node:0"])
    assert worker.claim() is None


def test_its_worker_is_woken_when_it_ends_since_no_key_vanishes_then(world, tail):
    assert world.heard() == []
    world.ledger.release(tail)
    assert world.heard() == [(world.ledger.keys.here("node:0"), "lease")]


def test_its_worker_is_busy_until_then(world, worker, tail):
    waiting = world.hold()
    assert worker.claim() == Closed("leased", -2)
    assert world.ledger.dispatch("node:0") == "closed"
    assert world.state(waiting) == "pending"
    world.ledger.release(tail)
    assert worker.claim() == waiting


def test_a_strangers_lease_in_between_is_left_alone(world, worker, tail):
    assert world.stranger_takes()
    assert world.ledger.give_back(tail) == "tail"
    assert world.ledger.renew(tail) == "tail"
    assert world.ledger.release(tail) == "released"
    assert (world.lease(), world.free()) == ("stranger", [])
    assert worker.claim().reason == "leased"


def test_a_stranger_that_robbed_it_unseen_keeps_the_gpu(world, run):
    world.lapse()
    world.stranger_takes()
    assert world.ledger.give_back(run) == "tail"
    assert world.lease() == "stranger"


def test_what_was_robbed_stays_robbed(world, run):
    world.lapse()
    world.stranger_takes()
    world.ledger.renew(run)
    assert world.ledger.give_back(run) == "tail"
    assert world.ticket(run.ticket)["why"] == "robbed"


def test_a_lapsed_lease_is_given_back_too(world, run):
    world.lapse()
    assert world.ledger.give_back(run) == "tail"
    assert world.ledger.reap("node:0") == "held"
    assert world.state(run.ticket) == "tail"


OVER = {
    "not_started": lambda world, worker, claim: None,
    "requeued": lambda world, worker, claim: (worker.start(claim), world.ledger.requeue(claim, "test", counted=False)),
    "reaped": lambda world, worker, claim: (worker.start(claim), world.lapse(), world.ledger.reap("node:0")),
    "ended": lambda world, worker, claim: (worker.start(claim), world.ledger.release(claim)),
}


@pytest.mark.parametrize("over", OVER.values(), ids=OVER.keys())
def test_what_does_not_run_gives_nothing_back(world, worker, claim, over):
    over(world, worker, claim)
    before = world.everything()
    assert world.ledger.give_back(claim) == "stale"
    assert world.everything() == before


def test_it_is_left_to_its_worker_while_its_heartbeat_comes(world, tail):
    world.lapse()
    assert world.ledger.agenda().lapsed == ["node:0"]
    world.ledger.renew(tail)
    assert world.ledger.agenda().lapsed == []
    assert world.ledger.reap("node:0") == "held"
    assert world.state(tail.ticket) == "tail"


def test_it_is_reaped_when_its_heartbeat_stays_away_for_a_ttl_whoever_is_present_there(world, worker, tail):
    world.drained()
    worker.report()
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert (world.state(tail.ticket), world.ticket(tail.ticket)["deliveries"]) == ("pending", "1")
    assert world.claim_of() == {}


def test_a_worker_that_stops_gives_it_back_uncounted(world, worker, tail):
    worker.leave()
    assert (world.state(tail.ticket), world.ticket(tail.ticket)["deliveries"]) == ("pending", "0")


def test_its_task_may_put_it_back(world, tail):
    world.drained()
    assert world.ledger.requeue(tail, "rejected", counted=False) == "pending"
    assert world.ledger.give_back(tail) == "stale"


def test_it_may_send_its_retry(world, tail):
    world.drained()
    retry = world.hold(run=tail)
    world.ledger.release(tail)
    assert world.states(tail.ticket, retry) == ["ended", "pending"]


def test_a_full_server_lets_it(world, run):
    world.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(LedgerUnavailable):
            world.hold()
        assert world.ledger.give_back(run) == "tail"
        assert world.ledger.renew(run) == "tail"
    finally:
        world.client.config_set("maxmemory", "0")
    assert (world.lease(), world.state(run.ticket)) == (None, "tail")
