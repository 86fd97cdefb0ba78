"""FORGET: a GPU that is gone for good leaves the registry, unless somebody may use it, or waits for it."""

import threading
from dataclasses import replace

import pytest

from celery_gpulease.ledger.census import queues_without_gpu
from celery_gpulease.ledger.removing import Removed
from celery_gpulease.ledger.views import gpu_rows
from tests.integration.ledger.world import LONG_AGO

ID, ALIAS = "GPU-7", "node:3"
#: What stays: numbers that never repeat, and what is told of the past.
KEPT = {"gpu:fence:node:0", "gpu:journal", "gpu:counters", "gpu:pulse", "gpu:arrival", "gpu:ended"}


def gone(world, gpu="node:0", **options):
    """A worker that was there, and has stopped."""
    worker = world.join(gpu, **options)
    worker.leave()
    worker.die()
    return worker


def names(world):
    return world.client.hgetall(world.key("names"))


def test_nothing_of_it_is_left_but_its_fence_and_the_past(world):
    worker = world.join()
    world.hold()
    worker.claim()
    world.ledger.release(worker.run())
    world.ledger.drain("node:0", drained=True)
    worker.leave()
    worker.die()
    assert world.ledger.forget("node:0") == Removed("removed", "node:0", "drain")
    assert gpu_rows(world.ledger) == []
    assert set(world.everything()) - {world.key("lines")} == KEPT


def test_the_others_stay(world):
    gone(world)
    worker = world.join("node:1")
    gone(world, ID)
    world.ledger.forget("node:0")
    assert [row.id for row in gpu_rows(world.ledger)] == [ID, "node:1"]
    assert worker.claim() is None
    assert world.free() == ["node:1"]


@pytest.mark.parametrize("name", [ID, ALIAS])
def test_either_name_will_do_and_both_are_gone(world, name):
    gone(world, ID)
    assert world.ledger.forget(name) == Removed("removed", ID)
    assert names(world) == {}


def test_a_name_that_it_had_elsewhere_goes_too_and_one_that_is_anothers_by_now_stays(world):
    gone(world, ID)
    for index in (4, 5):
        moved = world.worker(ID)
        moved.device = replace(moved.device, index=index)
        assert moved.join() == ["joined"]
        moved.leave()
        moved.die()
    other = world.worker("GPU-8")
    other.device = replace(other.device, index=4)
    other.join()
    assert world.ledger.forget(ID).word == "removed"
    assert names(world) == {"GPU-8": "GPU-8", "node:4": "GPU-8"}


def test_an_unknown_gpu_is_said_to_be_unknown_and_so_is_one_that_was_forgotten(world):
    assert world.ledger.forget("nobody:0") == Removed("unknown")
    gone(world)
    world.ledger.forget("node:0")
    before = world.everything()
    assert world.ledger.forget("node:0") == Removed("unknown")
    assert world.everything() == before


# who must go first


@pytest.fixture
def refused(world):
    """The answer; nothing has changed."""

    def refused(gpu="node:0"):
        before = world.everything()
        answer = world.ledger.forget(gpu)
        assert world.everything() == before
        return answer

    return refused


def test_a_worker_that_is_present_keeps_it_also_where_nobody_hears_of_it(world, refused):
    worker = world.join()
    for _ in range(2):
        answer = refused()
        assert (answer.word, answer.gpu, answer.what) == ("served", "node:0", "gpu@node")
        assert 0 < answer.number <= 30
        worker.die()
    world.lapse_presence()
    assert world.ledger.forget("node:0").word == "removed"


@pytest.mark.parametrize("state", ["claimed", "started", "tail"])
def test_a_claim_keeps_it_also_when_its_lease_has_lapsed(world, refused, state):
    worker = world.join()
    ticket = world.hold(task_id="one")
    worker.claim()
    if state != "claimed":
        run = worker.run()
    if state == "tail":
        world.ledger.give_back(run)
    worker.die()
    world.lapse_presence()
    assert refused() == Removed("busy", "node:0", "proj.render[one]")
    world.lapse()
    assert refused().word == "busy"
    world.ledger.reap("node:0")
    assert world.ledger.forget("node:0").word == "removed"
    assert world.state(ticket) == "pending"


def test_a_ticket_that_is_gone_keeps_it_since_its_run_may_live(world, refused):
    worker = world.join()
    ticket = world.hold()
    worker.claim()
    worker.run()
    worker.die()
    world.lapse_presence()
    world.lose_ticket(ticket)
    assert refused() == Removed("busy", "node:0", f"[{ticket}]")
    world.ledger.force("node:0")
    assert world.ledger.forget("node:0").word == "removed"


def test_what_another_worker_of_the_device_left_under_its_other_name_keeps_it(world, refused):
    other = world.join(ALIAS)
    world.hold(task_id="one")
    other.claim()
    other.run()
    other.die()
    world.lapse_presence(ALIAS)
    gone(world, ID)
    assert refused(ID) == Removed("busy", ID, "proj.render[one]")
    world.lapse(ALIAS)
    world.ledger.reap(ALIAS)
    assert [world.ledger.forget(name).word for name in (ID, ALIAS)] == ["removed", "removed"]
    assert gpu_rows(world.ledger) == []


@pytest.mark.parametrize("name", [ID, ALIAS])
def test_a_stranger_keeps_it_by_either_name(world, refused, name):
    gone(world, ID)
    world.stranger_takes(name)
    assert refused(ID) == Removed("leased", ID, "stranger")
    world.ledger.force(ID)
    assert world.ledger.forget(ID).word == "removed"


def test_a_wish_does_not_keep_it_and_is_the_strangers_own(world):
    gone(world)
    world.want()
    assert world.ledger.forget("node:0").word == "removed"
    assert world.client.get(world.key("want", "node:0")) == "stranger"


def test_what_is_pinned_to_it_by_any_name_keeps_it_also_when_it_is_not_due(world, refused):
    gone(world, ID)
    waiting = [world.hold(pin=ID), world.hold(pin=ALIAS), world.hold(pin=ID, eta_ms=1 << 60)]
    world.hold()
    world.hold(pin="node:1", eta_ms=1 << 60)
    for number, ticket in zip((3, 2, 1), waiting, strict=True):
        assert refused(ID) == Removed("awaited", ID, number=number)
        (taken,) = world.ledger.cancel(world.ticket(ticket)["task_id"]).taken
        world.ledger.finish(taken.ticket)
    assert world.ledger.forget(ID).word == "removed"


def test_a_worker_is_named_before_those_who_wait_for_it(world, refused):
    world.join()
    world.drained()
    world.hold(pin="node:0")
    assert refused().word == "served"


# what comes later


def test_a_worker_that_joins_under_its_name_has_a_new_gpu(world):
    gone(world, ID)
    world.ledger.drain(ID, drained=True)
    world.ledger.quarantine(ID, "something is left", "told")
    assert world.ledger.forget(ID).what == "drain and quarantine"
    worker = world.join(ID)
    ticket = world.hold(pin=ALIAS)
    assert world.state(ticket) == "claimed"
    assert world.closed(ID) == {}
    assert worker.pop().ticket == ticket


def test_the_quarantine_of_its_device_is_told_of_too(world):
    gone(world)
    world.ledger.quarantine_device("node:0", "it fell off the bus", has_ended=False)
    assert world.ledger.forget("node:0").what == "quarantine"


def test_its_fence_goes_on_from_where_it_was(world):
    worker = world.join()
    ahead = world.now_ms() + 3_600_000  # of a clock that was stepped back since
    world.client.set(world.key("fence", "node:0"), ahead)
    worker.leave()
    world.ledger.forget("node:0")
    worker = world.join()
    world.hold()
    worker.claim()
    assert worker.pop().fence == ahead + 1


def test_a_run_that_was_reaped_and_comes_back_late_does_not_believe_that_redis_has_lost_it(world):
    worker = world.join()
    ticket = world.hold()
    worker.claim()
    run = worker.run()
    worker.die()
    world.lapse_presence()
    world.lapse()
    world.ledger.reap("node:0")
    world.ledger.forget("node:0")
    other = world.join("node:1")
    other.claim()
    other.run()
    other.leave()
    assert world.ledger.renew(run) == "lost"  # it has started elsewhere since
    assert (world.lease(), world.state(ticket)) == (None, "pending")
    assert worker.report() == "unregistered"  # so it joins again


def test_what_its_queue_still_has_of_old_claims_goes_and_what_came_past_the_ledger_stays(world):
    worker = world.join()
    world.hold()
    worker.claim()
    message, queue = world.routed(), world.ledger.route_to("node:0")
    run = worker.run()
    world.ledger.release(run)
    worker.leave()
    world.client.lpush(queue, message, "a stray")
    world.ledger.forget("node:0")
    assert world.client.lrange(queue, 0, -1) == ["a stray"]
    assert list(queues_without_gpu(world.ledger)) == [(queue, 1)]


def test_the_journal_tells_of_it_and_it_is_counted_once(world):
    gone(world)
    world.ledger.drain("node:0", drained=True)
    for _ in range(2):
        world.ledger.forget("node:0")
    ((_, entry),) = world.client.xrevrange(world.key("journal"), count=1)
    assert (entry["what"], entry["gpu"], entry["detail"]) == ("removed", "node:0", "with its drain")
    assert world.count("removed") == 1


def test_a_worker_that_joins_at_the_same_time_has_its_gpu_whoever_is_first(world):
    """The registry never has half of it."""
    for _ in range(30):
        gone(world)
        worker, start = world.worker(), threading.Barrier(2)
        joining = threading.Thread(target=lambda start=start, worker=worker: (start.wait(), worker.join()))
        joining.start()
        start.wait()
        word = world.ledger.forget("node:0").word
        joining.join()
        assert word in ("removed", "served", "unknown")
        assert [row.worker for row in gpu_rows(world.ledger)] == ["gpu@node"]
        assert names(world) == {"node:0": "node:0"}
        assert worker.claim() is None
        world.deafen("node:0")
        world.lapse_presence()


def test_what_stopped_half_way_is_done_again(world):
    gone(world, ID)
    world.client.delete(world.key("closed", ID), world.key("gpus"), world.key("heartbeats"), world.key("names"))
    assert world.ledger.forget(ID).word == "removed"
    assert gpu_rows(world.ledger) == []


def test_a_lapsed_deadline_of_nobody_goes_with_it(world):
    gone(world)
    world.client.zadd(world.key("deadlines"), {"node:0": LONG_AGO})
    world.ledger.forget("node:0")
    assert world.ledger.agenda().lapsed == []
