"""Redis was killed and has loaded an old snapshot: what it knows of a GPU may be older than the run that is there."""

import pytest
import redis


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


def test_what_was_told_that_it_is_lost_takes_nothing_back(world, worker, snapshots):
    before = snapshots.take()
    run = run_one(world, worker)
    snapshots.load(before)
    assert world.ledger.renew(run, is_lost=True) == "lost"
    assert world.lease() is None
