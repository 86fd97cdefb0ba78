"""A device has two names, its UUID and `<host>:<index>`: whoever goes by either is understood, and minded."""

from dataclasses import replace

import pytest

from celery_gpulease.ledger.listening import Subscription
from celery_gpulease.ledger.views import gpu_rows, pending_rows
from tests.waiting import wait_until

ID, ALIAS = "GPU-7", "node:3"
SOON = 10


@pytest.fixture
def worker(world):
    worker = world.join(ID)
    assert worker.claim() is None
    return worker


def test_what_is_pinned_to_either_name_goes_there(world, worker):
    for pin in (ID, ALIAS):
        ticket = world.hold(pin=pin)
        assert world.state(ticket) == "claimed"
        world.ledger.release(worker.run())


@pytest.mark.parametrize("key", ["lease", "want"])
def test_a_lease_or_a_wish_by_the_other_name_keeps_tasks_away(world, worker, key):
    name = world.key(key, ALIAS)
    world.client.set(name, "stranger", px=60_000)
    ticket = world.hold()
    closed = worker.claim()
    assert world.state(ticket) == "pending"
    assert closed.reason == {"lease": "leased", "want": "wanted"}[key]
    assert 50_000 < closed.lease_ms <= 60_000
    assert world.ledger.dispatch(ID) == "closed"
    (row,) = gpu_rows(world.ledger)
    assert (row.state, "stranger" in row.reason) == ({"lease": "leased", "want": "free"}[key], True)
    world.client.delete(name)
    assert worker.claim() == ticket


@pytest.mark.parametrize("key", ["lease", "want"])
def test_a_gpu_is_not_handed_over_against_one(world, worker, key):
    first, second = world.hold(), world.hold()
    run = worker.run()
    world.client.set(world.key(key, ALIAS), "stranger", px=60_000)
    world.ledger.release(run)
    assert world.states(first, second) == ["ended", "pending"]
    assert world.lease(ID) is None


def test_what_another_worker_of_the_device_left_under_the_other_name_is_waited_for(world):
    other = world.join(ALIAS)
    ticket = world.hold(pin=ALIAS)
    other.claim()
    other.run()
    other.die()
    world.lapse_presence(ALIAS)
    worker = world.join(ID)
    assert worker.claim().reason == "leased"
    world.lapse(ALIAS)
    world.ledger.reap(ALIAS)
    assert worker.claim() == ticket


def test_without_nvml_the_uuid_that_it_had_is_minded_too(world, worker):
    worker.leave()
    successor = world.join(ALIAS)
    successor.join()
    world.stranger_takes(ID)
    world.hold()
    assert successor.claim().reason == "leased"


def test_a_reconciler_finds_nothing_wrong_with_a_gpu_that_a_stranger_holds_by_the_other_name(world, worker):
    world.stranger_takes(ALIAS)
    assert world.free() == [ID]
    assert world.ledger.inspect(ID, change=True)[3] == 0
    assert world.ledger.correct_gpu(ID, "", change=True) == []


def test_a_strangers_lease_is_taken_away_by_either_name(world, worker):
    ticket = world.hold(pin=ALIAS, eta_ms=1 << 60)
    for name in (ID, ALIAS):
        world.stranger_takes(ALIAS)
        found = world.ledger.force(name)
        assert (found.word, found.gpu, found.loser) == ("foreign", ID, "stranger")
        assert world.lease(ALIAS) is None
    assert world.state(ticket) == "scheduled"


def test_a_device_without_another_name_minds_no_empty_one(world):
    world.client.set("gpu:lease:", "stranger", px=60_000)
    assert world.join("node:0").claim() is None
    world.client.delete("gpu:lease:")


def test_its_listener_hears_of_both_names(world, ledger):
    ledger.client.config_set("notify-keyspace-events", "KEA")
    subscription = Subscription(ledger, ID, ALIAS)
    wait_until(lambda: subscription.wait(0.1) == "subscribed", SOON, "the subscription")
    for name in (ID, ALIAS):
        for key in ("lease", "want"):
            ledger.client.set(world.key(key, name), "stranger")
            ledger.client.delete(world.key(key, name))
            assert subscription.wait(SOON) == "lease"
    subscription.close()


def test_who_waits_for_it_by_either_name_is_told_how_it_is(world, worker):
    worker.die()
    tickets = [world.ticket(world.hold(pin=pin))["task_id"] for pin in (ID, ALIAS)]
    found = {row.task_id: row.reason for row in pending_rows(world.ledger, gpu_rows(world.ledger))}
    assert found == {
        tickets[0]: f"pinned to {ID}, which is offline",
        tickets[1]: f"pinned to {ALIAS}, which is offline",
    }


def test_what_nvml_tells_of_it_is_shown(world):
    worker = world.worker(ID)
    worker.device = replace(worker.device, model="NVIDIA Test", memory_bytes=1 << 34)
    worker.join()
    world.join("node:0")
    told = [(row.id, row.name, row.index, row.model, row.memory_bytes) for row in gpu_rows(world.ledger)]
    assert told == [(ID, ALIAS, 3, "NVIDIA Test", 1 << 34), ("node:0", "node:0", 0, None, None)]


def test_what_nvml_tells_of_it_is_remembered(world, worker):
    found = world.client.hgetall(world.key("device", ID))
    assert (found["uuid"], found["model"], found["memory_bytes"], found["other"]) == (ID, "", "0", ALIAS)


# a worker comes with NVML, or without, after one that had named it otherwise


@pytest.fixture(params=[(ALIAS, ID), (ID, ALIAS)], ids=["with NVML now", "without NVML now"])
def names(request):
    return request.param


def test_the_former_name_is_no_gpu_of_its_own_any_more(world, names):
    former, now = names
    world.join(former).leave()
    world.join(now)
    assert [row.id for row in gpu_rows(world.ledger)] == [now]
    assert set(world.client.hvals(world.key("names"))) == {now}


def test_what_closed_it_closes_it_still(world, names):
    former, now = names
    world.join(former).leave()
    world.ledger.drain(former, drained=True)
    world.ledger.quarantine(former, "something is left", "told")
    worker = world.join(now)
    assert world.closed(former) == {}
    assert worker.claim().reason == "drain"
    world.ledger.drain(ALIAS, drained=False)
    assert worker.claim().reason == "quarantine"
    assert world.ledger.left(now) == "told"


def test_it_remains_while_something_is_claimed_there(world, names):
    former, now = names
    other = world.join(former)
    ticket = world.hold()
    other.claim()
    other.run()
    other.die()
    world.lapse_presence(former)
    worker = world.join(now)
    assert len(gpu_rows(world.ledger)) == 2
    world.lapse(former)
    assert world.ledger.reap(former) == "reaped"
    assert (worker.claim(), world.state(ticket)) == (ticket, "claimed")
    worker.join()
    assert [row.id for row in gpu_rows(world.ledger)] == [now]


def test_not_so_where_a_worker_serves_it_elsewhere_by_now(world, worker):
    worker.leave()
    world.join(ALIAS).leave()  # it remembers the UUID
    elsewhere = world.worker(ID)
    elsewhere.device = replace(elsewhere.device, index=5)
    elsewhere.join()
    world.join(ALIAS)
    assert sorted(row.id for row in gpu_rows(world.ledger)) == [ID, ALIAS]


@pytest.mark.parametrize(("before", "after"), [(ID, ALIAS), (ALIAS, ID)])
def test_what_is_pinned_by_a_name_that_the_worker_had_before_goes_to_it_still(world, before, after):
    old = world.join(before)
    world.drained(before)
    waiting = world.hold(pin=before)
    old.leave()
    old.die()
    worker = world.join(after)
    world.ledger.drain(after, drained=False)
    worker.claim()
    assert world.state(waiting) == "claimed"
    world.ledger.release(worker.run())
    assert world.state(world.hold(pin=before)) == "claimed"
    world.ledger.release(worker.run())
