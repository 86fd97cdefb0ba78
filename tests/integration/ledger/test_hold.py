"""HOLD: a finished message has a place from the moment that the sender is answered, and a free GPU gets it at once."""

import json
import threading

import pytest

from celery_gpulease.model import Claim

HOUR_MS = 3_600_000


def test_without_a_gpu_it_waits_in_its_pools_line(world):
    held = world.held(pool="a100")
    assert world.ledger.hold(held) == "held"
    assert world.line("a100") == [held.ticket]
    assert world.state(held.ticket) == "pending"


def test_a_free_gpu_gets_it_at_once(world):
    worker = world.join()
    worker.claim()
    held = world.held()
    assert world.ledger.hold(held) == "claimed"
    claim = world.pop()
    assert (claim.ticket, claim.gpu, claim.delivery) == (held.ticket, "node:0", 1)
    assert world.lease() == claim.token
    assert world.free() == []


def test_the_message_is_routed_as_it_was_but_for_its_two_holes(world):
    worker = world.join()
    worker.claim()
    held = world.held()
    world.ledger.hold(held)
    routed = world.routed()
    claim = Claim.from_header(json.loads(routed)["gpulease"])
    filled = json.dumps({"gpu": claim.gpu, "token": claim.token, "fence": claim.fence, "delivery": 1})
    assert routed == held.message.replace("\1", "gpu.node:0").replace("\2", filled)


@pytest.mark.parametrize("queue_prefix", ["", "{broker}"])
@pytest.mark.parametrize("key_prefix", ["gpu:", "{gpu}:", "a[b]*?:"])
def test_keys_and_queues_stand_behind_their_prefixes(world, key_prefix, queue_prefix):
    worker = world.join()
    worker.claim()
    ticket = world.hold()
    assert world.client.exists(f"{key_prefix}lease:node:0", f"{queue_prefix}gpu.node:0") == 2
    assert world.ledger.release(worker.run()) == "released"
    assert world.state(ticket) == "ended"
    assert all(key.startswith(key_prefix) for key in world.client.scan_iter())


def test_lower_priorities_first_then_who_came_first(world):
    late, early, first, last = (world.hold(priority=n) for n in (5, 5, 0, 255))
    assert world.line() == [first, late, early, last]


def test_holding_again_does_nothing(world):
    held = world.held()
    world.ledger.hold(held)
    before = world.everything()
    assert world.ledger.hold(held) == "known"
    assert world.everything() == before


def test_holding_again_does_nothing_after_its_end_either(world):
    worker = world.join()
    held = world.held()
    world.ledger.hold(held)
    worker.claim()
    world.ledger.release(worker.run())
    assert world.ledger.hold(held) == "known"
    assert world.state(held.ticket) == "ended"
    assert world.line() == []


def test_what_is_not_due_yet_is_scheduled_and_no_gpu_gets_it(world):
    worker = world.join()
    held = world.held(eta_ms=world.now_ms() + HOUR_MS)
    assert world.ledger.hold(held) == "scheduled"
    assert world.state(held.ticket) == "scheduled"
    assert worker.claim() is None


def test_a_new_earliest_due_time_wakes_the_worker_whose_heartbeat_was_last(world):
    world.join("node:0")
    world.join("node:1")
    world.hold(eta_ms=world.now_ms() + 2 * HOUR_MS)
    world.hold(eta_ms=world.now_ms() + 3 * HOUR_MS)  # not the earliest
    world.hold(eta_ms=world.now_ms() + HOUR_MS)
    assert world.heard() == [(world.ledger.keys.here("node:1"), "due")] * 2


def test_a_pinned_one_waits_for_its_gpu_although_another_is_free(world):
    world.join("node:0").claim()
    held = world.held(pin="node:1")
    assert world.ledger.hold(held) == "held"
    assert world.join("node:1").claim() == held.ticket


@pytest.mark.parametrize("pin", ["GPU-7", "node:3"])
def test_a_pin_names_a_gpu_by_either_name(world, pin):
    world.join("GPU-7").claim()
    assert world.ledger.hold(world.held(pin=pin, pool="a pool that it does not serve")) == "claimed"
    assert world.pop("GPU-7") is not None


def test_a_gpu_whose_worker_was_killed_gets_nothing(world):
    worker = world.join()
    worker.claim()
    worker.die()
    assert world.ledger.hold(world.held()) == "held"
    assert world.free() == []


def test_a_gpu_that_a_stranger_leased_gets_nothing(world):
    world.join().claim()
    world.stranger_takes()
    assert world.ledger.hold(world.held()) == "held"
    assert world.lease() == "stranger"


def test_a_gpu_that_a_stranger_wants_gets_nothing(world):
    world.join().claim()
    world.want()
    assert world.ledger.hold(world.held()) == "held"


def test_who_waits_longer_gets_the_gpu_that_the_newcomer_found(world):
    first = world.hold()
    worker = world.join()
    worker.claim()
    worker.run()
    second = world.hold()
    world.client.delete(world.ledger.keys.lease("node:0"))  # as if its event were still under way
    world.lapse()
    world.ledger.reap("node:0")
    assert world.pop().ticket == first
    assert world.line() == [second]


def test_a_retry_supersedes_the_run_that_sends_it(world):
    worker = world.join()
    first = world.hold()
    worker.claim()
    run = worker.run()
    retry = world.held(task_id=world.ticket(first)["task_id"], run=run)
    assert world.ledger.hold(retry) == "scheduled"
    assert world.ticket(first)["superseded"] == "1"
    assert set(world.client.hkeys(world.key("task", retry.task_id))) == {first, retry.ticket}


def test_a_retry_waits_until_its_run_is_over_which_may_store_that_it_asked_for_one(world):
    worker, other = world.join(), world.join("node:1")
    first = world.hold(task_id="one")
    worker.claim()
    run = worker.run()
    retry = world.hold(task_id="one", run=run)
    assert other.claim() is None
    world.ledger.release(run)
    world.ledger.promote()
    assert world.states(first, retry) == ["ended", "claimed"]


def test_a_retry_whose_countdown_is_over_before_its_run_is_waits_too(world):
    worker, other = world.join(), world.join("node:1")
    world.hold(task_id="one")
    worker.claim()
    run = worker.run()
    retry = world.hold(task_id="one", run=run, eta_ms=world.now_ms() + 60_000)
    world.client.zadd(world.key("scheduled"), {retry: 1000})  # a minute later
    world.ledger.promote()
    assert (world.state(retry), other.claim()) == ("scheduled", None)
    world.client.hset(world.key("ticket", retry), "eta_ms", 1000)
    world.ledger.release(run)
    world.ledger.promote()
    assert world.state(retry) == "claimed"


def test_a_retry_runs_also_where_the_worker_of_its_run_dies_before_that_is_over(world):
    worker, other = world.join(), world.join("node:1")
    first = world.hold(task_id="one")
    worker.claim()
    retry = world.hold(task_id="one", run=worker.run())
    other.claim()  # nobody waits: it is free
    worker.die()
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    world.ledger.promote()
    assert world.states(first, retry) == ["ended", "claimed"]
    assert world.claim_of(other.gpu)["ticket"] == retry


def test_a_retry_is_given_out_also_where_its_run_has_vanished(world):
    worker = world.join()
    first = world.hold(task_id="one")
    worker.claim()
    run = worker.run()
    retry = world.hold(task_id="one", run=run)
    world.client.delete(world.key("ticket", first), world.key("message", first))
    world.client.hdel(world.key("task", "one"), first)
    world.client.zadd(world.key("scheduled"), {retry: 1000})  # a minute later
    world.ledger.promote()
    assert world.state(retry) == "pending"
    assert world.ledger.release(run) == "unknown"


def test_a_superseded_run_whose_worker_dies_ends_and_its_retry_runs(world):
    worker = world.join()
    first = world.hold()
    worker.claim()
    retry = world.hold(run=worker.run())
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert world.states(first, retry) == ["ended", "claimed"]


def test_a_run_that_was_reaped_cannot_send_its_retry(world):
    worker = world.join()
    first = world.hold()
    worker.claim()
    run = worker.run()
    worker.die()
    world.lapse()
    world.ledger.reap("node:0")
    assert world.ledger.hold(retry := world.held(run=run)) == "lost"
    assert world.states(first, retry.ticket) == ["pending", None]


def test_what_was_refused_as_lost_ends_nothing_by_its_release(world):
    worker = world.join()
    first = world.hold()
    worker.claim()
    run = worker.run()
    worker.die()
    world.lapse()
    world.ledger.reap("node:0")
    world.ledger.hold(world.held(run=run))
    assert world.ledger.release(run) == "lost"
    assert world.state(first) == "pending"


def test_what_has_expired_before_it_came_is_not_given_out(world):
    world.join().claim()
    ticket = world.hold(expires_ms=1)
    assert world.state(ticket) == "ending"
    assert world.pop() is None


def test_twenty_senders_at_once_and_three_gpus_make_three_claims(world):
    for gpu in ("node:0", "node:1", "node:2"):
        world.join(gpu).claim()
    senders = [world.held() for _ in range(20)]
    answers, gate = [], threading.Barrier(20)

    def send(held):
        gate.wait()
        answers.append(world.ledger.hold(held))

    threads = [threading.Thread(target=send, args=(held,)) for held in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["claimed"] * 3 + ["held"] * 17
    popped = [world.pop(gpu) for gpu in ("node:0", "node:1", "node:2")]
    assert len({claim.ticket for claim in popped}) == 3
    assert len(world.line()) == 17


@pytest.mark.parametrize(("forbid", "allow"), [("-publish", "+publish"), ("resetchannels", "allchannels")])
def test_where_an_acl_forbids_to_publish_it_is_held_all_the_same(world, forbid, allow):
    world.client.execute_command("ACL", "SETUSER", "default", forbid)
    try:
        later = world.held(eta_ms=world.now_ms() + 3_600_000)
        assert world.ledger.hold(later) == "scheduled"
    finally:
        world.client.execute_command("ACL", "SETUSER", "default", allow)
    assert world.state(later.ticket) == "scheduled"


def test_one_worker_is_told_of_the_next_to_expire(world):
    world.join().report()
    world.stranger_takes()
    world.heard()
    for hours in (2, 1, 3):
        world.hold(expires_ms=world.now_ms() + hours * 3_600_000)
    assert world.heard() == [("gpu:here:node:0", "due")] * 2
