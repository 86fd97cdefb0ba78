"""CANCEL: what is held of a task is taken back, and its end is due; what runs is left alone."""

import pytest

from celery_gpulease.ledger.answers import Taken


@pytest.fixture
def worker(world):
    return world.join()


HOUR_MS = 3_600_000


def cancelled(world, task_id="one"):
    found = world.ledger.cancel(task_id)
    assert found.is_known
    return [one.ticket for one in found.taken]


def test_what_waits_in_line_is_taken_out_of_it_alone(world):
    tickets = [world.hold(task_id=f"task {n}") for n in range(60)]
    assert cancelled(world, "task 30") == [tickets[30]]
    assert world.line() == tickets[:30] + tickets[31:]
    assert (world.state(tickets[30]), world.ticket(tickets[30])["why"]) == ("ending", "cancelled")


@pytest.mark.parametrize("given", [{"eta_ms": True}, {"pin": "node:3"}, {"expires_ms": True}, {"pool": "a100"}])
def test_wherever_it_waits_it_is_found(world, given):
    far = world.now_ms() + HOUR_MS
    ticket = world.hold(task_id="one", **{name: far if value is True else value for name, value in given.items()})
    assert cancelled(world) == [ticket]
    world.ledger.finish(ticket)
    assert world.state(ticket) == "ended"
    assert world.client.exists(world.key("scheduled"), world.key("scheduled_count"), world.key("expiring")) == 0


@pytest.mark.parametrize("popped", [True, False])
def test_a_claim_that_nobody_started_is_withdrawn_and_its_gpu_goes_to_the_next(world, worker, popped):
    ticket = world.hold(task_id="one")
    worker.claim()
    waiting = world.hold()
    message = worker.pop() if popped else None
    assert cancelled(world) == [ticket]
    if popped:
        assert worker.start(message) == "stale"
    assert worker.run().ticket == waiting
    assert worker.pop() is None


def test_a_claim_that_nobody_started_leaves_its_gpu_free_where_nobody_waits(world, worker):
    world.hold(task_id="one")
    worker.claim()
    cancelled(world)
    assert (world.lease(), world.free()) == (None, ["node:0"])


def test_its_end_is_due_at_once_for_whoever_writes_it(world):
    ticket = world.hold(task_id="one")
    (taken,) = world.ledger.cancel("one").taken
    assert taken == Taken(ticket, "one", "proj.render", has_run=False)
    ending = world.ledger.end()
    assert (ending.ticket, ending.task_id, ending.task, ending.why) == (ticket, "one", "proj.render", "cancelled")
    assert "12345678901234567890" in ending.message
    assert world.ledger.end() is None


def test_asked_again_it_names_the_same_tickets(world, worker):
    tickets = [world.hold(task_id="one"), world.hold(task_id="one")]
    worker.claim()
    first = world.ledger.cancel("one")
    assert {one.ticket for one in first.taken} == set(tickets)
    assert world.ledger.cancel("one") == first
    assert world.journal().count("ending") == 2


def test_written_it_is_unknown(world):
    ticket = world.hold(task_id="one")
    cancelled(world)
    world.ledger.finish(ticket)
    before = world.everything()
    assert not world.ledger.cancel("one").is_known
    assert world.everything() == before


def test_an_unknown_task_is_said_to_be_unknown(world):
    found = world.ledger.cancel("nobody")
    assert (found.is_known, found.running_on, found.taken) == (False, [], [])


@pytest.mark.parametrize("is_tail", [True, False])
def test_what_runs_is_left_alone_and_named(world, worker, is_tail):
    world.hold(task_id="one")
    worker.claim()
    run = worker.run()
    if is_tail:
        world.ledger.give_back(run)
    before = world.everything()
    found = world.ledger.cancel("one")
    assert (found.running_on, found.taken) == (["node:0"], [])
    assert world.everything() == before


def test_what_ends_by_another_reason_keeps_it(world):
    ticket = world.hold(task_id="one", expires_ms=world.now_ms() + HOUR_MS)
    world.make_expired(ticket)
    world.ledger.promote()
    found = world.ledger.cancel("one")
    assert (found.is_known, found.taken, world.ticket(ticket)["why"]) == (True, [], "expired")


def test_a_run_that_was_reaped_and_cancelled_is_not_its_own_any_more(world, worker):
    ticket = world.hold(task_id="one")
    worker.claim()
    run = worker.run()
    world.drained()
    world.lapse()
    world.ledger.reap("node:0")
    assert cancelled(world) == [ticket]
    assert world.ledger.is_elsewhere(run)
    assert world.ledger.renew(run) == "lost"
    assert world.ledger.release(run) == "lost"
    assert world.ledger.finish(ticket) == "ended"


def test_a_retry_that_waits_is_cancelled_beside_the_run_that_sent_it(world, worker):
    world.hold(task_id="one")
    worker.claim()
    run = worker.run()
    retry = world.hold(task_id="one", run=run)
    found = world.ledger.cancel("one")
    assert (found.running_on, [one.ticket for one in found.taken]) == (["node:0"], [retry])
    assert world.ledger.end() is None  # the run has yet to store its RETRY
    world.ledger.release(run)
    assert world.ledger.end().ticket == retry


@pytest.mark.parametrize("lost", ["ticket", "message"])
def test_what_somebody_deleted_by_hand_is_forgotten(world, lost):
    ticket = world.hold(task_id="one")
    if lost == "ticket":
        world.client.delete(world.key("ticket", ticket))
    else:
        world.lose_message(ticket)
    taken = world.ledger.cancel("one").taken
    assert [world.ledger.end(one.ticket) for one in taken] == [None] * (lost == "message")
    assert world.state(ticket) == "ended"
    world.join().claim()
    for kind, name in (("pending", "default"), ("waiting", "default")):
        world.client.zrem(world.key(kind, name), ticket)


def test_all_waiting_tickets_of_a_task_go_before_a_gpu_could_be_given_one(world, worker):
    tickets = [world.hold(task_id="one"), world.hold(task_id="one"), world.hold(task_id="one")]
    worker.claim()
    assert set(cancelled(world)) == set(tickets)
    assert (world.lease(), world.free()) == (None, ["node:0"])


@pytest.mark.parametrize("number", [1, 1000])
def test_many_are_cancelled_in_their_order_whatever_they_are(world, number):
    tickets = [world.hold(task_id=f"task {n}") for n in range(number)]
    found = list(world.ledger.cancel_each(["plain", *(f"task {n}" for n in range(number)), "nobody"]))
    assert [[one.ticket for one in its.taken] for its in found] == [[], *([ticket] for ticket in tickets), []]
    assert world.line() == []
