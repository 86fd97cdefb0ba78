"""RENEW: its table of answers, row by row. A run is never regained once it started elsewhere."""

import pytest

from celery_gpulease.exceptions import LedgerUnavailable


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def run(world, worker):
    world.hold()
    worker.claim()
    return worker.run()


def put_back(world, run):
    """The run's lease lapses and it is reaped; nobody else serves its pool, and its own GPU is drained."""
    world.ledger.drain(run.gpu, drained=True)
    world.lapse(run.gpu)
    assert world.ledger.reap(run.gpu) == "reaped"
    world.end_delay(run.ticket)
    assert world.state(run.ticket) == "pending"


def claimed_on(world, run, gpu):
    """It is reaped, and claimed for another GPU."""
    put_back(world, run)
    other = world.join(gpu)
    assert other.claim() == run.ticket
    return other


def claim_for_another(world, run):
    """What should never be: the GPU of a living run claimed for another ticket."""
    keys = [world.ledger.keys.lease(run.gpu), world.key("claim", run.gpu)]
    saved = world.claim_of(run.gpu)
    world.client.delete(*keys)
    ticket = world.hold()
    assert world.ledger.claim(run.gpu) == ticket
    return ticket, saved


# T is started, K


def test_its_own_lease_gets_a_new_deadline(world, run):
    world.age()
    assert world.ledger.renew(run) == "renewed"
    assert 29_000 < world.lease_ms() <= 30_000


def test_renewing_twice_adds_nothing(world, run):
    world.ledger.renew(run)
    world.ledger.renew(run)
    assert world.lease_ms() <= 30_000


def test_nobodys_lease_is_regained(world, run):
    world.lapse()
    assert world.ledger.renew(run) == "regained"
    assert world.lease() == run.token
    assert world.claim_of()["state"] == "started"


def test_a_lease_deleted_by_hand_is_regained(world, run):
    world.delete_lease()
    assert world.ledger.renew(run) == "regained"
    assert world.lease() == run.token


def test_a_claim_for_another_that_nobody_started_yields(world, run):
    other, _ = claim_for_another(world, run)
    assert world.ledger.renew(run) == "regained"
    assert world.lease() == run.token
    assert world.states(run.ticket, other) == ["started", "pending"]
    assert world.ticket(other)["deliveries"] == "0"
    assert world.pop() is None


def test_a_strangers_lease_robs_it(world, run):
    world.lapse()
    world.stranger_takes()
    assert world.ledger.renew(run) == "robbed"
    assert world.lease() == "stranger"
    assert (world.state(run.ticket), world.ticket(run.ticket)["why"]) == ("tail", "robbed")


def test_what_was_robbed_runs_on_without_its_lease_also_when_the_stranger_has_gone(world, run):
    world.lapse()
    world.stranger_takes()
    world.ledger.renew(run)
    world.delete_lease()
    assert world.ledger.renew(run) == "robbed"  # again, since who asked first may not be the one who acts on it
    assert world.lease() is None


# K was taken away by force


@pytest.fixture
def forced(world, run):
    assert world.ledger.force("node:0").word == "started"
    return run


@pytest.mark.parametrize("lease_of", ["nobody", "a stranger", "itself"])
def test_what_was_forced_is_lost_whoever_has_the_gpu_and_stays_a_tail(world, forced, lease_of):
    if lease_of == "a stranger":
        world.stranger_takes()
    elif lease_of == "itself":
        world.client.set(world.ledger.keys.lease("node:0"), forced.token, px=60_000)
    before = world.lease()
    assert world.ledger.renew(forced) == "lost"
    assert world.lease() == before
    assert (world.state(forced.ticket), world.claim_of()["state"]) == ("tail", "tail")
    world.delete_lease()


def test_what_was_forced_keeps_its_ticket_while_its_heartbeat_comes(world, forced):
    world.lapse()
    world.ledger.renew(forced)
    assert world.ledger.reap("node:0") == "held"


def test_what_was_forced_is_not_regained_when_it_was_reaped_meanwhile(world, forced):
    world.drained()
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert world.ledger.renew(forced) == "lost"
    assert (world.lease(), world.state(forced.ticket)) == (None, "pending")


def test_a_run_that_was_forced_once_is_regained_as_any_when_it_runs_again(world, worker, forced):
    world.ledger.requeue(forced, "lost", counted=True)
    again = worker.run()
    world.drained()
    world.lapse()
    world.ledger.reap("node:0")
    assert world.ledger.renew(again) == "regained"


@pytest.mark.parametrize(("is_lost", "answer"), [(False, "flushed"), (True, "lost")])
def test_what_was_told_that_it_is_lost_takes_nothing_back_from_a_redis_that_has_forgotten(world, run, is_lost, answer):
    world.client.flushdb()
    assert world.ledger.renew(run, is_lost=is_lost) == answer
    assert (world.lease() == run.token) == (answer == "flushed")
    world.delete_lease()


# T was reaped


def test_reaped_and_waiting_it_is_taken_out_of_the_line_and_regained(world, run):
    put_back(world, run)
    assert world.ledger.renew(run) == "regained"
    assert world.lease() == run.token
    assert world.line() == []


def test_reaped_and_claimed_elsewhere_that_claim_is_given_up(world, run):
    other = claimed_on(world, run, "node:1")
    assert world.ledger.renew(run) == "regained"
    assert (world.lease(), world.lease("node:1")) == (run.token, None)
    assert other.pop() is None
    assert world.free() == ["node:1"]
    assert world.ticket(run.ticket)["deliveries"] == "1"


def test_the_message_of_the_claim_that_was_given_up_is_stale(world, run):
    other = claimed_on(world, run, "node:1")
    popped = other.pop()
    world.ledger.renew(run)
    assert other.start(popped) == "stale"


def test_reaped_and_claimed_again_for_the_same_gpu_it_is_regained(world, worker, run):
    world.lapse()
    world.ledger.reap(run.gpu)
    assert world.state(run.ticket) == "claimed"
    assert world.ledger.renew(run) == "regained"
    assert (world.lease(), worker.pop()) == (run.token, None)


def test_reaped_while_its_gpu_was_claimed_for_another_that_one_goes_back(world, worker, run):
    put_back(world, run)
    world.ledger.drain(run.gpu, drained=False)
    urgent = world.hold(priority=0)
    world.lapse()
    assert world.ledger.requeue(worker.pop(), "shutdown", counted=False) == "claimed"  # the reaped one is first
    assert world.states(run.ticket, urgent) == ["claimed", "pending"]
    other = world.join("node:1")
    world.ledger.requeue(worker.pop(), "shutdown", counted=False)
    assert other.claim() is not None
    assert world.ledger.renew(run) == "regained"
    assert world.state(run.ticket) == "started"


def test_reaped_claimed_elsewhere_and_deferred_there_it_is_taken_out_of_the_schedule_and_regained(world, run):
    other = claimed_on(world, run, "node:1")
    assert world.ledger.defer(other.pop(), 60) == "scheduled"
    assert not world.ledger.is_lost(run)
    assert world.ledger.renew(run) == "regained"
    assert (world.lease(), world.state(run.ticket)) == (run.token, "started")
    assert world.client.exists(world.key("scheduled")) == 0
    assert world.ticket(run.ticket)["deliveries"] == "1"


@pytest.mark.parametrize("reap", [put_back, lambda world, run: claimed_on(world, run, "node:1")])
def test_reaped_and_a_stranger_has_the_gpu_it_is_lost(world, run, reap):
    reap(world, run)
    before = world.state(run.ticket)
    world.stranger_takes()
    assert world.ledger.renew(run) == "lost"
    assert (world.lease(), world.state(run.ticket)) == ("stranger", before)


def test_what_was_lost_once_does_not_come_back(world, run):
    put_back(world, run)
    world.stranger_takes()
    world.ledger.renew(run)
    world.delete_lease()
    assert world.ledger.renew(run) == "lost"
    assert world.ledger.release(run) == "lost"
    assert world.state(run.ticket) == "pending"


def test_reaped_and_its_gpu_runs_another_it_is_lost(world, worker, run):
    put_back(world, run)
    world.hold(pin=run.gpu)
    world.ledger.drain(run.gpu, drained=False)
    worker.run()
    assert world.ledger.renew(run) == "lost"
    assert world.state(run.ticket) == "pending"


# T is somewhere else for good


def test_started_elsewhere_it_is_lost(world, run):
    claimed_on(world, run, "node:1").run()
    assert world.ledger.renew(run) == "lost"
    assert (world.lease(), world.state(run.ticket)) == (None, "started")


def test_a_run_is_never_regained_once_it_started_elsewhere(world, run):
    other = claimed_on(world, run, "node:1")
    put_back(world, other.run())
    assert world.ledger.renew(run) == "lost"
    assert world.state(run.ticket) == "pending"


def test_what_its_task_put_back_is_not_regained_by_a_late_heartbeat(world, run):
    world.ledger.drain(run.gpu, drained=True)
    world.ledger.requeue(run, "rejected", counted=False)
    assert world.ledger.renew(run) == "lost"
    assert world.state(run.ticket) == "pending"


def test_ended_it_is_told_so(world, run):
    world.ledger.release(run)
    assert world.ledger.renew(run) == "ended"
    assert world.lease() is None


def test_a_ticket_that_nobody_knows_is_lost(world, run):
    world.ledger.release(run)
    world.client.delete(world.key("ended"))
    assert world.ledger.renew(run) == "lost"
    assert world.lease() is None


def test_a_claim_is_not_renewed_before_its_start(world, worker):
    world.hold()
    worker.claim()
    claim = worker.pop()
    world.age()
    assert world.ledger.renew(claim) == "unstarted"
    assert world.lease_ms() <= 100


def test_a_full_server_still_renews_and_releases(world, worker, run):
    client = world.client
    world.age(left_ms=10_000)
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(LedgerUnavailable):
            world.hold()
        assert world.ledger.renew(run) == "renewed"
        assert world.lease_ms() > 29_000
        world.delete_lease()
        assert world.ledger.renew(run) == "regained"
        assert world.lease_ms() > 29_000
        assert world.ledger.release(run) == "released"
    finally:
        client.config_set("maxmemory", "0")
    assert world.state(run.ticket) == "ended"


def test_a_run_whose_ticket_was_deleted_keeps_its_lease_also_when_somebody_has_noted_that_it_vanished(world, run):
    world.lose_message(run.ticket)
    world.lose_ticket(run.ticket)
    world.client.zadd(world.key("ended"), {run.ticket: world.now_ms()})
    world.age()
    assert world.ledger.renew(run) == "flushed"
    assert world.lease_ms() > 29_000
    assert not world.ledger.is_elsewhere(run)
    world.ledger.release(run)
