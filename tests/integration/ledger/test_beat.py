"""BEAT: RENEW and REPORT at once, for the usual case; in any other it changes nothing, and says so."""

from dataclasses import replace

import pytest

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.ledger import scripts
from celery_gpulease.settings import read_settings


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def run(world, worker):
    world.hold()
    worker.claim()
    return worker.run()


def everything(world):
    """All keys, with what they hold, and those that have no deadline."""
    keys = sorted(world.client.keys("*"))
    return {key: (world.client.dump(key), world.client.pttl(key) == -1) for key in keys}


def test_it_renews_and_reports(world, worker, run):
    world.age()
    world.client.pexpire(world.key("worker", "node:0"), 100)
    assert worker.beat(run) == "present"
    assert 29_000 < world.lease_ms() <= 30_000
    assert world.client.pttl(world.key("worker", "node:0")) > 29_000
    running, at = world.client.hmget(world.key("device", "node:0"), "running", "reported_ms")
    assert (running, world.now_ms() - int(at) < 1000) == (run.token, True)
    assert abs(world.client.zscore(world.key("deadlines"), "node:0") - world.now_ms() - 30_000) < 1000


def test_it_leaves_what_renew_and_report_leave(world, worker, run):
    """But for the times."""

    def left():
        at = ("reported_ms", "at", "granted_at", "grace_until")
        found = (world.client.hgetall(world.key(*name)) for name in (("device", "node:0"), ("pulse",)))
        return [{field: value for field, value in one.items() if field not in at} for one in found]

    world.ledger.renew(run)
    worker.report(run)
    before = left()
    world.client.hset(world.key("pulse"), "gpu", "another")
    world.client.hdel(world.key("device", "node:0"), "running", "presence")
    worker.beat(run)
    assert left() == before


def test_who_takes_no_work_hears_that_this_is_known(world, worker, run):
    worker.close()
    assert worker.beat(run) == "closing"


def test_it_is_the_pools_pulse(world, worker, run):
    world.client.hset(world.key("pulse"), mapping={"at": 1, "gpu": "another"})
    worker.beat(run)
    at, gpu = world.client.hmget(world.key("pulse"), "at", "gpu")
    assert (gpu, world.now_ms() - int(at) < 1000) == ("node:0", True)


def test_after_a_silence_it_grants_a_grace_as_any_heartbeat_does(world, worker, run):
    world.client.hset(world.key("pulse"), mapping={"at": world.now_ms() - 16_000, "granted_at": 0})
    worker.beat(run)
    assert int(world.client.hget(world.key("pulse"), "grace_until")) > world.now_ms() + 11_000


UNUSUAL = [
    "lapsed", "stranger", "tail", "forced", "reaped", "ended", "another token", "presence lapsed", "presence changed",
    "another worker", "unregistered", "forgotten",
]  # fmt: skip


def spoil(world, worker, run, how):
    {
        "lapsed": world.lapse,
        "stranger": lambda: (world.lapse(), world.stranger_takes()),
        "tail": lambda: world.ledger.give_back(run),
        "forced": lambda: world.ledger.force("node:0"),
        "reaped": lambda: (world.drained(), world.lapse(), world.ledger.reap("node:0")),
        "ended": lambda: world.ledger.release(run),
        "another token": lambda: (world.ledger.release(run), world.hold(), worker.run()),
        "presence lapsed": world.lapse_presence,
        "presence changed": lambda: setattr(worker, "presence", replace(worker.presence, children=((7, 8),))),
        "another worker": lambda: (world.lapse_presence(), world.join()),
        "unregistered": lambda: world.client.hdel(world.key("device", "node:0"), "ttl_ms"),
        "forgotten": world.client.flushdb,
    }[how]()


@pytest.mark.parametrize("how", UNUSUAL)
def test_it_does_nothing_where_anything_is_unusual(world, worker, run, how):
    spoil(world, worker, run, how)
    before = everything(world)
    assert worker.beat(run) == "unusual"
    assert everything(world) == before
    if how == "unregistered":
        worker.join()


def test_a_silence_that_is_not_looked_at_is_too_short_for_any_ttl():
    shortest = {"broker_url": "redis://", "gpulease_lease_ttl": 0.1, "gpulease_heartbeat_interval": 0.1}
    with pytest.raises(ConfigurationError, match=r"at most half of gpulease_lease_ttl, here 0\.05 seconds"):
        read_settings(shortest)
    assert "SHORTEST_OUTAGE_MS = 50" in scripts.source("beat").text
