"""REAP: only a lapsed lease is dead; what its holder left goes back to its place, or to its end."""

import pytest

from tests.integration.ledger.world import STARTED


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
    worker.start(claim)
    return claim


def test_a_living_lease_is_held(world, run):
    assert world.ledger.reap("node:0") == "held"
    assert world.state(run.ticket) == "started"


def test_a_lease_deleted_by_hand_is_held_until_its_deadline(world, run):
    world.delete_lease()
    assert world.ledger.reap("node:0") == "held"
    assert world.state(run.ticket) == "started"


def test_a_claim_that_lost_its_token_is_no_lease(world, run):
    world.lapse()
    world.client.hdel(world.key("claim", "node:0"), "token")
    assert world.ledger.reap("node:0") == "reaped"


def test_where_nothing_was_claimed_there_is_nothing_to_reap(world, worker):
    assert world.ledger.reap("node:0") == "none"


def test_a_dead_workers_run_goes_back_to_its_place_and_counts(world, worker, run):
    later = world.hold()
    worker.die()
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert world.line() == [run.ticket, later]
    assert world.ticket(run.ticket)["deliveries"] == "1"
    assert world.claim_of() == {}


def test_another_free_gpu_gets_it_at_once(world, worker, run):
    world.join("node:1").claim()
    worker.die()
    world.lapse()
    world.ledger.reap("node:0")
    assert world.pop("node:1").ticket == run.ticket


def test_doing_it_again_changes_nothing(world, worker, run):
    world.join("node:1").claim()
    worker.die()
    world.lapse()
    world.ledger.reap("node:0")
    before = world.everything()
    assert world.ledger.reap("node:0") == "none"
    assert world.everything() == before


def test_without_its_count_of_deliveries_it_goes_back_all_the_same(world, worker, run):
    world.client.hdel(world.key("ticket", run.ticket), "deliveries")
    worker.die()
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert (world.state(run.ticket), world.ticket(run.ticket).get("deliveries")) == ("pending", None)


def test_given_out_too_often_it_fails(world, worker, claim):
    worker.start(claim, limit=1)
    world.lapse()
    world.ledger.reap("node:0")
    assert (world.state(claim.ticket), world.ticket(claim.ticket)["why"]) == ("ending", "lease_lost")


def test_a_task_that_kills_its_workers_is_given_out_as_often_as_its_limit_says(world, worker, claim):
    runs = 0
    while claim:
        assert worker.start(claim, limit=3) in STARTED
        runs += 1
        world.lapse()
        world.ledger.reap("node:0")
        world.end_delay(claim.ticket)
        claim = worker.pop()
    assert runs == 3


def test_what_may_run_only_once_fails_at_once(world, worker, claim):
    worker.start(claim, acks_late=False)
    world.lapse()
    world.ledger.reap("node:0")
    assert world.ticket(claim.ticket)["why"] == "lease_lost"


def test_a_claim_that_nobody_started_goes_back_uncounted_and_its_message_goes(world, worker):
    ticket = world.hold()
    worker.claim()
    worker.die()
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert world.pop() is None
    found = world.ticket(ticket)
    assert (found["state"], found["deliveries"], found["returns"]) == ("pending", "0", "1")


def test_a_ticket_that_three_gpus_did_not_start_fails(world):
    ticket = world.hold()
    for gpu in ("node:0", "node:1", "node:2"):
        worker = world.join(gpu)
        assert worker.claim() == ticket
        worker.die()
        world.lapse(gpu)
        world.ledger.reap(gpu)
    assert world.ticket(ticket)["why"] == "unstarted"


def test_a_ticket_that_one_gpu_did_not_start_ten_times_fails(world, worker):
    ticket = world.hold()
    worker.claim()
    for _ in range(10):
        assert world.state(ticket) == "claimed"
        world.lapse()
        world.ledger.reap("node:0")
        world.quarantine_is_over()
        worker.report()
    assert world.ticket(ticket)["why"] == "unstarted"


def test_a_strangers_lease_is_left_alone(world, run):
    world.lapse()
    world.stranger_takes()
    assert world.ledger.reap("node:0") == "reaped"
    assert (world.lease(), world.state(run.ticket)) == ("stranger", "pending")


@pytest.fixture
def robbed(world, run):
    world.lapse()
    world.stranger_takes()
    world.ledger.renew(run)
    return run


def test_a_robbed_run_is_left_to_its_worker_while_its_heartbeat_comes(world, robbed):
    world.lapse()
    assert world.ledger.renew(robbed) == "robbed"
    assert world.ledger.reap("node:0") == "held"
    assert world.state(robbed.ticket) == "tail"


def test_a_robbed_run_is_reaped_when_its_heartbeat_stays_away_for_a_ttl(world, robbed):
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert world.state(robbed.ticket) == "pending"


# after an outage every deadline is past although every worker lives


def test_after_an_outage_runs_are_left_for_their_workers_to_regain(world, run):
    world.lapse()
    world.outage()
    assert world.ledger.reap("node:0") == "grace"
    assert world.ledger.reap("node:0") == "held"
    assert world.ledger.renew(run) == "regained"


def test_whose_heartbeat_comes_first_does_not_hide_the_outage(world, worker, run):
    world.lapse()
    world.outage()
    worker.report(run)
    assert world.ledger.reap("node:0") == "grace"


def test_a_worker_that_joins_first_does_not_hide_the_outage(world, run):
    world.lapse()
    world.outage()
    world.join("node:1")
    assert world.ledger.reap("node:0") == "grace"


def test_grace_ends_a_heartbeat_later(world, run):
    world.lapse()
    world.outage()
    world.ledger.reap("node:0")
    grace_until = int(world.client.hget(world.key("pulse"), "grace_until"))
    assert 10_000 < grace_until - world.now_ms() <= 12_000
    world.end_grace()
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"


def test_one_silence_is_granted_one_grace(world, run):
    world.lapse()
    world.outage()
    world.ledger.reap("node:0")
    world.client.hset(world.key("pulse"), "grace_until", 999)  # it is over, and nobody's heartbeat came
    world.client.hset(world.key("pulse"), "at", 998)
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"


def test_a_second_silence_is_granted_its_own_grace_although_the_first_one_lasts(world, run):
    now = world.now_ms()
    world.lapse()
    world.client.hset(
        world.key("pulse"), mapping={"granted_at": now - 25_000, "at": now - 20_000, "grace_until": now - 15_000}
    )
    assert world.ledger.reap("node:0") == "grace"


def test_what_was_not_started_needs_no_grace(world, claim):
    world.lapse()
    world.outage()
    assert world.ledger.reap("node:0") == "reaped"


# the clock was stepped back: what lies further ahead than anybody sets it says nothing


def test_a_grace_of_a_clock_that_was_stepped_back_since_spares_nobody(world, worker, run):
    world.client.hset(world.key("pulse"), "grace_until", world.now_ms() + 3_600_000)
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"


def test_a_grace_that_was_granted_before_the_clock_was_stepped_back_is_not_the_last(world, worker, run):
    world.outage()
    world.client.hset(world.key("pulse"), "granted_at", world.now_ms() + 3_600_000)
    world.lapse()
    assert world.ledger.reap("node:0") == "grace"
