"""START: a routed ticket runs under the claim that it was routed by, once, or not at all."""

import pytest


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def claim(world, worker):
    world.hold()
    worker.claim()
    return worker.pop()


def test_a_claimed_ticket_runs(world, worker, claim):
    assert worker.start(claim, "n", acks_late=False, limit=7) == "run"
    found = world.ticket(claim.ticket)
    assert found["state"] == world.claim_of()["state"] == "started"
    assert (found["nonce"], found["acks_late"], found["limit"], found["stores_result"]) == ("n", "0", "7", "1")


def test_the_lease_begins_again(world, worker, claim):
    world.age()
    worker.start(claim)
    assert world.lease_ms() > 29_000


def test_a_lapsed_lease_is_taken_again_where_nobody_has_it(world, worker, claim):
    world.lapse()
    assert worker.start(claim) == "run"
    assert world.lease() == claim.token


def test_the_same_request_may_ask_again(world, worker, claim):
    assert [worker.start(claim, "n"), worker.start(claim, "n")] == ["run", "run"]
    assert world.count("started") == 1


def test_another_request_is_refused(world, worker, claim):
    assert [worker.start(claim, "one"), worker.start(claim, "two")] == ["run", "twice"]
    assert world.ticket(claim.ticket)["nonce"] == "one"


def test_under_a_strangers_lease_it_goes_back_uncounted(world, worker, claim):
    world.lapse()
    world.stranger_takes()
    assert worker.start(claim) == "foreign"
    assert world.state(claim.ticket) == "pending"
    assert world.ticket(claim.ticket)["deliveries"] == "0"
    assert world.lease() == "stranger"


def test_asking_again_does_not_run_under_a_lease_that_a_stranger_took_meanwhile(world, worker, claim):
    worker.start(claim, "n")  # its reply is lost, and the second call late
    world.lapse()
    world.stranger_takes()
    assert worker.start(claim, "n") == "foreign"
    world.delete_lease()
    assert world.ledger.renew(claim) == "lost"
    assert world.state(claim.ticket) == "pending"


def reaped(world, _, claim):
    world.lapse()
    world.ledger.reap(claim.gpu)


def given_back(world, _, claim):
    world.ledger.requeue(claim, "shutdown", counted=False)


def claimed_elsewhere(world, _, claim):
    world.ledger.drain(claim.gpu, drained=True)
    given_back(world, _, claim)
    world.join("node:1").claim()


def ended(world, _, claim):
    world.ledger.release(claim)


@pytest.mark.parametrize("over", [reaped, given_back, claimed_elsewhere, ended])
def test_the_message_of_a_claim_that_is_over_is_stale(world, worker, claim, over):
    over(world, worker, claim)
    before = world.state(claim.ticket)
    assert worker.start(claim) == "stale"
    assert world.state(claim.ticket) == before


def test_a_stale_message_does_not_start_the_next_claim_of_its_ticket(world, worker, claim):
    given_back(world, worker, claim)  # and claimed at once for the same GPU
    assert world.state(claim.ticket) == "claimed"
    assert worker.start(claim) == "stale"
    assert worker.start(worker.pop()) == "run"


def test_a_ticket_that_nobody_held_is_unknown(world, worker, claim):
    ended(world, worker, claim)
    world.client.delete(world.key("ended"))
    assert worker.start(claim) == "unknown"


# an earlier run of the ticket may have stored its end


def again(world, worker, **how):
    """The answer to START once the first run's ticket is back."""
    world.ledger.requeue(worker.run(), "test", **how)
    worker.claim()
    return worker.start(worker.pop(), "second")


def test_after_a_run_that_died_the_next_one_is_told(world, worker):
    world.hold()
    worker.claim()
    assert again(world, worker, counted=True) == "again"


def test_after_a_shutdown_it_is_told_too(world, worker):
    world.hold()
    worker.claim()
    assert again(world, worker, counted=False) == "again"


def test_a_run_that_asked_for_the_next_one_has_left_no_end(world, worker):
    world.hold()
    worker.claim()
    assert again(world, worker, counted=False, wanted=True) == "rerun"


def test_a_run_that_died_after_one_that_asked_for_it_may_have_left_an_end(world, worker):
    world.hold()
    worker.claim()
    world.ledger.requeue(worker.run(), "test", counted=False, wanted=True)
    worker.claim()
    assert again(world, worker, counted=True) == "again"


def test_where_no_result_is_stored_nobody_is_told(world, worker):
    world.hold()
    worker.claim()
    world.ledger.requeue(worker.run(), "test", counted=True)
    worker.claim()
    claim = worker.pop()
    assert world.ledger.start(claim, "n", "instance", acks_late=True, limit=3, stores_result=False) == "rerun"


def test_a_claim_that_was_never_started_has_left_no_end(world, worker):
    world.hold()
    worker.claim()
    world.ledger.requeue(worker.pop(), "test", counted=False)
    worker.claim()
    assert worker.start(worker.pop()) == "run"
