"""END and FINISH: an end outside Redis is handed to one writer at a time, until it is written or given up."""

import pytest


@pytest.fixture
def ticket(world):
    """A ticket that has expired."""
    held = world.hold(expires_ms=world.now_ms() + 3_600_000)
    world.make_expired(held)
    world.ledger.promote()
    return held


def test_an_end_says_what_is_to_be_written(world, ticket):
    found = world.ledger.end()
    assert (found.ticket, found.task, found.why, found.deliveries) == (ticket, "proj.render", "expired", 0)
    assert found.task_id == world.ticket(ticket)["task_id"]
    assert "12345678901234567890" in found.message
    assert found.first_run_ms == 0


def test_a_run_whose_task_has_ended_without_it_is_told_so(world):
    worker = world.join()
    world.hold()
    worker.claim()
    run = worker.run(acks_late=False)
    world.lapse()
    world.ledger.reap(run.gpu)
    assert not world.ledger.is_elsewhere(run)
    assert world.ledger.end().first_run_ms > 0
    world.ledger.finish(run.ticket)
    assert world.ledger.is_elsewhere(run)
    assert world.ledger.renew(run) == "ended"


def test_nobody_else_gets_it_for_half_a_minute(world, ticket):
    world.ledger.end()
    assert world.ledger.end() is None
    assert world.client.zscore(world.key("ending"), ticket) > world.now_ms() + 29_000


def test_it_is_offered_again_when_its_writer_died(world, ticket):
    world.ledger.end()
    world.client.zadd(world.key("ending"), {ticket: 0})
    assert world.ledger.end().ticket == ticket


def test_one_ticket_can_be_asked_for(world, ticket):
    world.hold(expires_ms=1)  # another
    world.ledger.promote()
    assert world.ledger.end(ticket).ticket == ticket
    assert world.ledger.end(ticket) is None  # somebody has it
    assert world.ledger.end("no such ticket") is None


def test_written_it_ends_once(world, ticket):
    world.ledger.end()
    assert world.ledger.finish(ticket) == "ended"
    assert world.state(ticket) == "ended"
    before = world.everything()
    assert world.ledger.finish(ticket) == "stale"
    assert world.everything() == before


def test_what_is_put_off_is_offered_again_however_often(world, ticket):
    for _ in range(12):
        assert world.ledger.end().ticket == ticket
        assert world.ledger.put_off(ticket) == "put_off"
        world.client.zadd(world.key("ending"), {ticket: 0})
    world.ledger.finish(ticket)
    assert world.ledger.put_off(ticket) == "stale"
    assert world.ticket(ticket) == {}


def test_what_is_not_ending_is_not_finished(world):
    waiting = world.hold()
    assert world.ledger.finish(waiting) == "stale"
    assert world.state(waiting) == "pending"


def test_after_ten_tries_it_is_given_up_and_the_journal_says_so(world, ticket):
    for _ in range(10):
        assert world.ledger.end(ticket).ticket == ticket
        world.client.zadd(world.key("ending"), {ticket: 0})
    assert world.ledger.end(ticket) is None
    assert world.state(ticket) == "ended"
    assert world.journal()[-1] == "gave_up"


def test_what_was_given_up_does_not_hide_the_next(world, ticket):
    for _ in range(10):
        world.ledger.end(ticket)
        world.client.zadd(world.key("ending"), {ticket: 0})
    other = world.hold(expires_ms=world.now_ms() + 3_600_000)
    world.make_expired(other)
    world.ledger.promote()
    assert world.ledger.end().ticket == other
