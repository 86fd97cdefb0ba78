"""Redis was killed and has loaded an old snapshot: what it knows of a GPU may be older than the run that is there."""

import pytest
import redis

from celery_gpulease.model import Claim


class Snapshots:
    """Takes one of the database, and puts it in the database's place, as a Redis that starts again does."""

    def __init__(self, url):
        self.client = redis.Redis.from_url(url)

    def take(self):
        return {key: (self.client.dump(key), max(0, self.client.pttl(key))) for key in self.client.scan_iter()}

    def load(self, taken):
        self.client.flushdb()
        for key, (value, ttl_ms) in taken.items():
            self.client.restore(key, ttl_ms, value)


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def snapshots(redis_url):
    made = Snapshots(redis_url)
    yield made
    made.client.close()


def run_one(world, worker, **given):
    world.hold(**given)
    worker.claim()
    return worker.run()


def run_after(world, worker, snapshots):
    """A run, and what was true while its ticket still waited."""
    world.drained()
    world.hold()
    before = snapshots.take()
    world.ledger.drain(worker.gpu, drained=False)
    return worker.run(), before


def lapse_all(world):
    """The leases of an old snapshot are over by now."""
    for gpu in world.client.zrange(world.key("deadlines"), 0, -1):
        world.lapse(gpu)


def test_a_run_that_it_knows_as_waiting_goes_on(world, worker, snapshots):
    run, before = run_after(world, worker, snapshots)
    snapshots.load(before)
    assert world.ledger.renew(run) == "regained"
    assert (world.lease(), world.state(run.ticket), world.ticket(run.ticket)["deliveries"]) == (
        run.token,
        "started",
        "1",
    )
    world.lapse()
    assert world.ledger.renew(run) == "regained"
    assert world.ticket(run.ticket)["deliveries"] == "1"
    assert world.ledger.release(run) == "released"


def test_a_run_that_it_does_not_know_keeps_its_gpu(world, worker, snapshots):
    before = snapshots.take()
    run = run_one(world, worker)
    snapshots.load(before)
    assert world.ledger.renew(run) == "flushed"
    assert world.lease() == run.token
    assert world.ledger.release(run) == "unknown"
    assert world.lease() is None


def test_the_run_before_it_goes_back_to_its_place(world, worker, snapshots):
    earlier = run_one(world, worker)
    before = snapshots.take()
    world.ledger.release(earlier)
    run = run_one(world, worker)
    snapshots.load(before)
    lapse_all(world)
    assert world.ledger.renew(run) == "flushed"
    assert (world.lease(), world.state(earlier.ticket)) == (run.token, "pending")
    assert world.ledger.release(run) == "unknown"


def test_a_run_that_ends_before_its_heartbeat_is_not_run_again(world, worker, snapshots):
    run, before = run_after(world, worker, snapshots)
    snapshots.load(before)
    assert world.ledger.release(run) == "released"
    assert world.state(run.ticket) == "ended"


def test_a_run_that_has_started_elsewhere_since_is_left_alone(world, worker, snapshots):
    run, before = run_after(world, worker, snapshots)
    snapshots.load(before)
    elsewhere = world.join("node:1")
    elsewhere.claim()
    again = elsewhere.run()
    assert world.ledger.renew(run) == "lost"
    assert not world.ledger.is_elsewhere(again)
    assert world.ledger.is_elsewhere(run)
    assert world.ledger.renew(again) == "renewed"


def test_once_it_is_lost_its_end_no_longer_counts(world, worker, snapshots):
    run, before = run_after(world, worker, snapshots)
    snapshots.load(before)
    world.stranger_takes()
    assert world.ledger.renew(run) == "lost"
    assert world.ledger.is_elsewhere(run)
    assert world.ledger.release(run) == "lost"
    assert world.state(run.ticket) == "pending"


@pytest.mark.parametrize("is_known", [True, False])
def test_a_run_that_is_over_before_its_heartbeat_is_its_tasks_only_one(world, worker, snapshots, is_known):
    nothing = snapshots.take()
    run, before = run_after(world, worker, snapshots)
    snapshots.load(before if is_known else nothing)
    assert not world.ledger.is_elsewhere(run)
    assert not world.ledger.is_lost(run)


def test_a_run_whose_task_has_ended_elsewhere_since_is_not_its_only_one(world, worker, snapshots):
    run, before = run_after(world, worker, snapshots)
    snapshots.load(before)
    elsewhere = world.join("node:1")
    elsewhere.claim()
    world.ledger.release(elsewhere.run())
    assert world.ledger.is_elsewhere(run)


@pytest.mark.parametrize("state", ["known", "unknown"])
def test_a_token_that_no_claim_made_is_of_no_run(world, worker, state):
    world.drained()
    ticket = world.hold() if state == "known" else "nobody's"
    forged = Claim(ticket, worker.gpu, "forged", 1, 1)
    assert world.ledger.renew(forged) == "lost"
    assert world.ledger.release(forged) == ("lost" if state == "known" else "unknown")


def test_what_was_told_that_it_is_lost_takes_nothing_back(world, worker, snapshots):
    before = snapshots.take()
    run = run_one(world, worker)
    snapshots.load(before)
    assert world.ledger.renew(run, is_lost=True) == "lost"
    assert world.lease() is None


@pytest.mark.parametrize("is_emptied", [True, False], ids=["emptied", "snapshot"])
def test_the_retry_of_a_run_that_it_has_forgotten_is_held_and_takes_its_place(world, worker, snapshots, is_emptied):
    run, before = run_after(world, worker, snapshots)
    snapshots.load({} if is_emptied else before)
    worker.join()
    world.drained()
    retry = world.held(task_id="the-task", run=run)
    assert world.ledger.hold(retry) == "held"
    assert world.ledger.hold(retry) == "known"
    world.ledger.renew(run)
    world.ledger.release(run)
    assert world.line() == [retry.ticket]
    assert not world.client.exists(world.key("ticket", run.ticket))


def test_the_retry_of_a_forgotten_run_whose_task_has_started_elsewhere_is_lost(world, worker, snapshots):
    run, before = run_after(world, worker, snapshots)
    snapshots.load(before)
    world.drained()
    other = world.join("node:1")
    other.claim()
    other.run()
    assert world.ledger.hold(world.held(run=run)) == "lost"
