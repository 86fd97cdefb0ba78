"""What was revoked is remembered: whatever comes of it later ends too."""

import json

import pytest
import redis

HOUR_MS = 3_600_000
STAMP = '["customer", "acme"]'


def revoke(world, *task_ids):
    return list(world.ledger.cancel_each(task_ids, revoked=True))


def age(world, name, hours):
    """So long ago was everything of it revoked."""
    with world.client.pipeline() as pipe:
        for member in world.client.zrange(world.key(name), 0, -1):
            pipe.zincrby(world.key(name), -hours * HOUR_MS, member)
        pipe.execute()


@pytest.mark.parametrize("given", [{}, {"eta_ms": True}, {"pin": "node:0"}])
def test_what_was_revoked_before_it_is_held_ends_at_once(world, given):
    world.join()
    revoke(world, "one")
    far = world.now_ms() + HOUR_MS
    held = world.held(task_id="one", **{name: far if value is True else value for name, value in given.items()})
    assert world.ledger.hold(held) == "revoked"
    assert world.ledger.hold(held) == "known"  # its reply was lost
    assert (world.ledger.end().why, world.lease()) == ("cancelled", None)
    world.ledger.finish(held.ticket)
    assert world.ledger.hold(held) == "known"


def test_who_cancels_by_hand_forbids_nothing_later(world):
    list(world.ledger.cancel_each(["one"]))
    assert world.ledger.hold(world.held(task_id="one")) == "held"


def test_a_retry_of_what_was_revoked_while_it_ran_ends_once_its_run_has_stored_its_retry(world):
    worker = world.join()
    world.hold(task_id="one")
    worker.claim()
    run = worker.run()
    (found,) = revoke(world, "one")
    assert (found.running_on, found.taken) == (["node:0"], [])
    assert world.ledger.hold(world.held(task_id="one", run=run)) == "revoked"
    assert world.ledger.end() is None
    assert 59 < world.ledger.agenda().ending <= 60
    world.heard()
    assert world.ledger.release(run) == "released"
    assert ("gpu:here:node:0", "due") in world.heard()
    assert world.ledger.end().why == "cancelled"


@pytest.mark.parametrize("way", ["released", "reaped", "superseded"])
def test_however_the_run_ends_its_revoked_retry_is_due_then(world, way):
    worker = world.join()
    world.hold(task_id="one")
    worker.claim()
    run = worker.run()
    revoke(world, "one")
    retry = world.held(task_id="one", run=run)
    world.ledger.hold(retry)
    if way == "reaped":
        world.lapse()
        assert world.ledger.reap("node:0") == "reaped"
    elif way == "superseded":
        assert world.ledger.requeue(run, "its process died", counted=True) == "ended"
    else:
        assert world.ledger.give_back(run) == "tail"
        assert world.ledger.end() is None
        assert world.ledger.release(run) == "released"
    assert world.ledger.end().ticket == retry.ticket


def test_while_another_run_of_its_task_goes_on_a_revoked_retry_waits(world):
    workers = [world.join(), world.join("node:1")]
    for _ in workers:
        world.hold(task_id="one")
    runs = [worker.claim() and worker.run() for worker in workers]
    revoke(world, "one")
    world.ledger.hold(world.held(task_id="one", run=runs[0]))
    world.ledger.release(runs[1])
    assert world.ledger.end() is None
    world.ledger.release(runs[0])
    assert world.ledger.end().why == "cancelled"


def test_a_run_whose_revoked_retry_found_no_place_is_not_superseded(world):
    worker = world.join()
    ticket = world.hold(task_id="one")
    worker.claim()
    run = worker.run()
    revoke(world, "one")
    world.client.set(world.key("ending"), "of another type: the script stops there")
    retry = world.held(task_id="one", run=run)
    with pytest.raises(redis.exceptions.ResponseError):
        world.ledger.hold(retry)
    assert "superseded" not in world.ticket(ticket)
    world.client.delete(world.key("ending"))
    world.ledger.release(run)
    world.client.delete(world.key("ticket", retry.ticket), world.key("message", retry.ticket), world.key("task", "one"))


@pytest.mark.parametrize("by", ["id", "stamp"])
def test_a_run_that_was_revoked_does_not_go_back_to_its_line(world, by):
    worker = world.join()
    ticket = world.hold(task_id="one", stamps=json.dumps([STAMP]))
    worker.claim()
    run = worker.run()
    revoke(world, "one") if by == "id" else world.ledger.revoke_stamp(STAMP)
    world.ledger.requeue(run, "its process died", counted=True)
    assert (world.state(ticket), world.ticket(ticket)["why"]) == ("ending", "cancelled")
    assert world.ledger.renew(run) == "lost"


def test_a_stamp_is_known_by_its_header_and_its_value(world):
    world.ledger.revoke_stamp(STAMP)
    answers = [
        world.ledger.hold(world.held(stamps=json.dumps(stamps)))
        for stamps in ([STAMP], ['["night", "7"]', STAMP], ['["customer", "another"]'], ['["night", "acme"]'])
    ]
    assert answers == ["revoked", "revoked", "held", "held"]


def test_what_bears_a_stamp_is_found_wherever_it_is(world):
    far, stamps = world.now_ms() + HOUR_MS, json.dumps([STAMP])
    for number in range(250):
        world.hold(stamps=json.dumps(['["customer", "another"]']), task_id=f"another {number}")
    world.hold(task_id="line", stamps=stamps)
    world.hold(task_id="later", stamps=stamps, eta_ms=far)
    world.hold(task_id="plain")
    assert world.ledger.stamped([STAMP, '["night", "7"]']) == ["later", "line"]
    assert world.ledger.stamped([]) == []


def test_after_three_hours_it_is_forgotten(world):
    revoke(world, "one")
    world.ledger.revoke_stamp(STAMP)
    age(world, "revoked", 3)
    age(world, "revoked_stamps", 3)
    held = world.held(task_id="one", stamps=json.dumps([STAMP]))
    assert world.ledger.hold(held) == "held"
    revoke(world, "two")
    assert world.client.zrange(world.key("revoked"), 0, -1) == ["two"]


def test_of_too_many_the_oldest_are_forgotten(world):
    now = world.now_ms()
    world.client.zadd(world.key("revoked"), {f"old {n}": now - n for n in range(50_000)})
    revoke(world, "one")
    assert world.client.zcard(world.key("revoked")) == 50_000
    assert world.client.zscore(world.key("revoked"), "old 49999") is None


def test_one_worker_looks_for_what_bears_stamps_and_may_ask_again(world):
    take = world.ledger.take_search
    assert [take([STAMP, "other"], who) for who in ("one", "two", "one")] == [True, False, True]
    assert not take(["other", STAMP], "two")
    assert take([STAMP], "two")
    assert all(0 < world.client.pttl(name) <= 60_000 for name in world.client.scan_iter("gpu:turn:stamps:*"))
