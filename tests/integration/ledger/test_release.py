"""RELEASE: what is done is done, wherever the ticket is by now, and nobody else's lease is touched."""

import pytest

from tests.integration.ledger.test_renew import claimed_on, put_back


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def run(world, worker):
    world.hold()
    worker.claim()
    return worker.run()


def is_gone(world, run):
    left = [world.key(kind, run.ticket) for kind in ("ticket", "message", "returned")]
    return world.state(run.ticket) == "ended" and world.client.exists(*left) == 0


def test_the_lease_is_given_back_and_the_ticket_ends(world, run):
    assert world.ledger.release(run) == "released"
    assert world.lease() is None
    assert is_gone(world, run)
    assert world.free() == ["node:0"]


def test_releasing_again_changes_nothing(world, worker, run):
    world.ledger.release(run)
    next_one = world.hold()
    assert world.ledger.release(run) == "ended"
    assert worker.pop().ticket == next_one
    assert world.lease() is not None


def test_where_somebody_waits_the_gpu_is_handed_over_and_its_key_never_vanishes(world, worker, run, client):
    expired, waiting, later = world.hold(expires_ms=world.now_ms() + 60_000), world.hold(), world.hold()
    world.make_expired(expired)
    client.config_set("notify-keyspace-events", "KA")
    with client.pubsub() as events:
        events.subscribe(channel := f"__keyspace@0__:{world.ledger.keys.lease('node:0')}")
        assert world.ledger.release(run) == "released"
        client.publish(channel, "done")
        heard = list(iter(lambda: events.get_message(timeout=5)["data"], b"done"))
        assert b"set" in heard
        assert b"del" not in heard
    claim = world.claim_of()
    assert (claim["ticket"], claim["state"], claim["token"]) == (waiting, "claimed", world.lease())
    assert 0 < world.lease_ms() <= 30_000
    assert "started_ms" not in claim
    assert world.line() == [later]
    assert is_gone(world, run)
    assert (worker.pop().ticket, worker.pop()) == (waiting, None)
    assert world.journal()[-3:] == ["released", "ending", "claimed"]


def test_neither_the_hand_over_nor_the_start_after_it_wakes_the_worker(world, worker, run, client):
    world.hold()
    client.config_set("notify-keyspace-events", "Kgxe")
    with client.pubsub() as events:
        events.subscribe(channel := f"__keyspace@0__:{world.ledger.keys.lease('node:0')}")
        world.ledger.release(run)
        assert worker.run().token == world.lease()
        client.publish(channel, "done")
        assert list(iter(lambda: events.get_message(timeout=5)["data"], b"done"))[1:] == []


@pytest.mark.parametrize("left_ms", [1000, 26_000, 3_600_000])  # the last is of a clock that was stepped back
def test_a_lease_that_is_handed_over_lasts_for_nine_tenths_of_a_ttl_or_more(world, worker, run, left_ms):
    world.hold()
    world.age(left_ms=left_ms)
    world.ledger.release(run)
    assert 29_000 < world.lease_ms() <= 30_000
    assert abs(world.client.zscore(world.key("deadlines"), "node:0") - world.now_ms() - world.lease_ms()) < 100


@pytest.mark.parametrize("why", ["want", "drain", "closing", "deaf", "other pool", "pinned elsewhere"])
def test_where_a_gpu_must_not_be_handed_over_its_lease_goes(world, worker, run, why):
    world.hold(pool="other" if why == "other pool" else "default", pin="node:9" if why == "pinned elsewhere" else "")
    {
        "want": world.want,
        "drain": world.drained,
        "closing": worker.close,
        "deaf": worker.die,
    }.get(why, lambda: None)()
    assert world.ledger.release(run) == "released"
    assert (world.lease(), world.claim_of()) == (None, {})
    assert is_gone(world, run)


def test_a_lapsed_lease_ends_it_too(world, run):
    world.lapse()
    assert world.ledger.release(run) == "released"
    assert is_gone(world, run)


def test_under_a_strangers_lease_it_ends_and_the_key_is_left_alone(world, run):
    world.lapse()
    world.stranger_takes()
    assert world.ledger.release(run) == "released"
    assert (world.lease(), is_gone(world, run)) == ("stranger", True)
    assert world.free() == []


def test_a_robbed_run_ends_when_it_is_done(world, run):
    world.lapse()
    world.stranger_takes()
    world.ledger.renew(run)
    assert world.ledger.release(run) == "released"
    assert (world.lease(), is_gone(world, run)) == ("stranger", True)


@pytest.mark.parametrize("has_stranger", [False, True])
def test_a_forced_run_that_could_not_be_stopped_ends_when_it_is_done_and_nothing_else_changes(
    world, worker, run, has_stranger
):
    world.ledger.force("node:0")
    waiting = world.hold()
    if has_stranger:
        world.stranger_takes()
    assert world.ledger.release(run) == "released"
    assert is_gone(world, run)
    assert world.lease() == ("stranger" if has_stranger else None)
    assert (worker.claim() == waiting) == (not has_stranger)


def test_a_forced_run_that_was_reaped_ends_nothing(world, run):
    world.ledger.force("node:0")
    world.drained()
    world.lapse()
    world.ledger.reap("node:0")
    assert world.ledger.release(run) == "lost"
    assert world.state(run.ticket) == "pending"


def test_a_claim_for_another_that_nobody_started_stays(world, run):
    put_back(world, run)
    other = world.hold(pin=run.gpu)
    world.ledger.drain(run.gpu, drained=False)
    lease = world.lease()
    assert world.ledger.release(run) == "released"
    assert (world.lease(), world.state(other)) == (lease, "claimed")


def test_reaped_and_waiting_it_is_taken_out_and_ends(world, run):
    put_back(world, run)
    assert world.ledger.release(run) == "released"
    assert is_gone(world, run)
    assert world.line() == []


def test_reaped_and_a_stranger_has_the_gpu_it_ends_and_the_key_is_left_alone(world, run):
    put_back(world, run)
    world.stranger_takes()
    assert world.ledger.release(run) == "released"
    assert (world.lease(), is_gone(world, run)) == ("stranger", True)


def test_reaped_and_claimed_elsewhere_that_claim_is_given_up(world, run):
    other = claimed_on(world, run, "node:1")
    assert world.ledger.release(run) == "released"
    assert (world.lease("node:1"), other.pop()) == (None, None)
    assert is_gone(world, run)
    assert world.free() == ["node:1"]


def test_started_elsewhere_only_its_own_key_is_deleted(world, run):
    other = claimed_on(world, run, "node:1").run()
    assert world.ledger.release(run) == "lost"
    assert world.lease("node:1") == other.token
    assert world.state(run.ticket) == "started"


def test_once_it_started_elsewhere_its_end_no_longer_counts(world, run):
    other = claimed_on(world, run, "node:1")
    put_back(world, other.run())
    assert world.ledger.release(run) == "lost"
    assert world.state(run.ticket) == "pending"


def test_done_after_all_its_failure_is_not_written(world, worker):
    world.hold()
    worker.claim()
    run = worker.run(limit=1)
    world.lapse()
    world.ledger.reap("node:0")
    assert world.state(run.ticket) == "ending"
    assert world.ledger.release(run) == "released"
    assert world.ledger.end() is None


def test_what_main_put_back_is_not_ended_by_its_child(world, run):
    world.ledger.drain(run.gpu, drained=True)
    world.ledger.requeue(run, "child killed", counted=True)
    assert world.ledger.release(run) == "lost"
    assert world.state(run.ticket) == "pending"


def test_a_claim_that_never_starts_may_end(world, worker):
    world.hold()
    worker.claim()
    claim = worker.pop()  # its message is of no use: the task is unknown
    assert world.ledger.release(claim) == "released"
    assert is_gone(world, claim)


def test_an_unknown_ticket_has_its_own_key_deleted(world, run):
    task = world.key("task", world.ticket(run.ticket)["task_id"])
    world.client.delete(world.key("ticket", run.ticket), world.key("message", run.ticket), task)
    assert world.ledger.release(run) == "unknown"
    assert world.lease() is None
    assert world.claim_of() == {}


def test_an_ended_ticket_is_remembered_for_a_quarter_of_an_hour(world, run):
    old = world.now_ms() - 16 * 60 * 1000
    world.client.zadd(world.key("ended"), {f"old-{n}": old for n in range(6)})
    world.ledger.release(run)
    assert world.client.zcard(world.key("ended")) == 6 - 4 + 1  # a few per call
