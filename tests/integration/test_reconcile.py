"""Each row breaks exactly this, and sees exactly this corrected; a dry run names it and changes nothing."""

import json

import pytest

from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.checks import inconsistencies
from celery_gpulease.model import Claim, Device, Held, Presence
from celery_gpulease.reconcile.corrections import reconcile
from celery_gpulease.settings import Settings
from tests.waiting import wait_until

GPU = "n:0"
MESSAGE = '{"queue": "\x01", "claim": \x02}'


@pytest.fixture
def ledger(redis_url):
    ledger = Ledger(Settings(redis_url=redis_url, lease_ttl=30, heartbeat_interval=10))
    yield ledger
    assert inconsistencies(ledger) == []
    ledger.client.close()


@pytest.fixture
def worker(ledger):
    """A living worker of one GPU: its presence, and its subscription."""
    presence = Presence("instance", "gpu0@n", "n", 1, "0")
    assert ledger.join(Device(GPU, 0, "n"), ("default",), presence) == ["joined"]
    pubsub = ledger.client.pubsub()
    pubsub.subscribe(ledger.keys.here(GPU))
    wait_until(lambda: pubsub.get_message(timeout=1), 10, "the subscription")
    yield presence
    pubsub.close()


def hold(ledger, ticket="t"):
    return ledger.hold(Held(ticket, f"task-{ticket}", "proj.x", "default", "", 0, 0, 0, MESSAGE))


def started(ledger):
    """A claim of the first ticket in line, started."""
    message = json.loads(ledger.client.rpop("gpu.n:0"))
    claim = Claim(ledger.client.hget(f"gpu:claim:{GPU}", "ticket"), **message["claim"])
    assert ledger.start(claim, "nonce", "instance", acks_late=True, limit=3, stores_result=True) == "run"
    return claim


def found(ledger, kind):
    """A dry run names exactly this and changes nothing, then it is corrected, and then there is nothing to correct."""
    before = ledger.client.dbsize()
    assert [one.kind for one in reconcile(ledger, "me", change=False)] == [kind]
    assert ledger.client.dbsize() == before
    assert [one.kind for one in reconcile(ledger, "me")] == [kind]
    assert reconcile(ledger, "me") == []


def test_a_missed_event(ledger, worker):
    ledger.claim(GPU)
    ledger.client.delete("gpu:free:default")  # nobody finds the GPU
    hold(ledger)
    ledger.client.zadd("gpu:free:default", {GPU: 1})
    found(ledger, "missed event")
    assert ledger.client.llen("gpu.n:0") == 1


@pytest.mark.parametrize("is_started", [True, False])
def test_a_lapsed_lease(ledger, worker, is_started):
    ledger.claim(GPU)
    hold(ledger)
    if is_started:
        started(ledger)
    ledger.client.hset(f"gpu:closed:{GPU}", "drain", 1)  # so that it is not claimed again at once
    ledger.client.delete(f"gpu:lease:{GPU}")
    ledger.client.zadd("gpu:deadlines", {GPU: 1})
    found(ledger, "lapsed lease")
    assert ledger.client.hget("gpu:ticket:t", "state") == "pending"


def test_a_job_without_its_lease(ledger, worker):
    ledger.claim(GPU)
    hold(ledger)
    claim = started(ledger)
    ledger.report(GPU, worker, claim, 15)
    ledger.client.delete(f"gpu:lease:{GPU}")
    ledger.client.zadd("gpu:deadlines", {GPU: 1})
    found(ledger, "job without lease")
    assert ledger.client.get(f"gpu:lease:{GPU}") == claim.token


def test_a_report_older_than_two_heartbeats_is_no_evidence(ledger, worker):
    ledger.claim(GPU)
    hold(ledger)
    ledger.report(GPU, worker, started(ledger), 15)
    ledger.client.hset(f"gpu:device:{GPU}", "reported_ms", 1)
    ledger.client.hset(f"gpu:closed:{GPU}", "drain", 1)
    ledger.client.delete(f"gpu:lease:{GPU}")
    ledger.client.zadd("gpu:deadlines", {GPU: 1})
    found(ledger, "lapsed lease")


@pytest.mark.parametrize("is_listed", [True, False])
def test_an_index_out_of_step(ledger, worker, is_listed):
    ledger.claim(GPU)
    if is_listed:
        ledger.client.hset(f"gpu:closed:{GPU}", "drain", 1)
    else:
        ledger.client.delete("gpu:free:default")
    found(ledger, "index out of step")
    assert (ledger.client.zscore("gpu:free:default", GPU) is None) == is_listed


def test_nothing_wrong_is_nothing_corrected(ledger, worker):
    ledger.claim(GPU)
    hold(ledger, "a")
    hold(ledger, "b")
    ledger.report(GPU, worker, started(ledger), 15)
    assert reconcile(ledger, "me") == []


def test_one_at_a_time_and_not_sooner_than_wanted(ledger):
    assert ledger.take_turn("me")
    assert reconcile(ledger, "other") is None
    ledger.end_turn("other")
    assert reconcile(ledger, "other") is None
    ledger.end_turn("me")
    assert reconcile(ledger, "other", age=60) is None
    assert reconcile(ledger, "other") == []
