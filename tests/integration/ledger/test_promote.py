"""PROMOTE: what is due enters its line, in due order; what has expired goes to its end."""

import pytest

HOUR_MS = 3_600_000


@pytest.fixture
def later(world):
    return world.now_ms() + HOUR_MS


def test_nothing_is_due(world, later):
    world.hold(eta_ms=later)
    assert world.ledger.promote() == (0, 0)


def test_what_is_due_enters_its_line_in_due_order_behind_who_came_before(world, later):
    second, first = world.hold(eta_ms=later), world.hold(eta_ms=later)
    waiting = world.hold()
    world.make_due(second, 2000)
    world.make_due(first, 1000)
    assert world.ledger.promote() == (2, 0)
    assert world.line() == [waiting, first, second]
    assert not world.client.exists(world.key("scheduled_count"))


def test_a_free_gpu_gets_what_is_due(world, later):
    worker = world.join()
    worker.claim()
    ticket = world.hold(eta_ms=later)
    world.make_due(ticket)
    world.ledger.promote()
    assert worker.pop().ticket == ticket


def test_a_pinned_one_is_given_to_its_gpu(world, later):
    for gpu in ("node:0", "node:1"):
        world.join(gpu).claim()
    ticket = world.hold(eta_ms=later, pin="node:1")
    world.make_due(ticket)
    world.ledger.promote()
    assert world.pop("node:1").ticket == ticket


@pytest.mark.parametrize("due", [True, False])
@pytest.mark.parametrize("scheduled", [True, False])
def test_what_has_expired_goes_to_its_end_wherever_it_waits(world, later, scheduled, due):
    ticket = world.hold(eta_ms=later if scheduled else 0, expires_ms=later)
    world.make_expired(ticket)
    if due and scheduled:
        world.make_due(ticket)
    assert world.ledger.promote() == (0, 1)
    assert (world.state(ticket), world.ticket(ticket)["why"]) == ("ending", "expired")


def test_what_runs_does_not_expire(world, later):
    worker = world.join()
    ticket = world.hold(expires_ms=later)
    worker.claim()
    world.make_expired(ticket)
    assert world.ledger.promote() == (0, 0)


def test_back_in_line_it_expires_again(world, later):
    worker = world.join()
    ticket = world.hold(expires_ms=later)
    worker.claim()
    run = worker.run()
    world.drained()
    world.ledger.requeue(run, "rejected", counted=False)
    world.make_expired(ticket)
    assert world.ledger.promote() == (0, 1)


def test_a_few_at_a_time_so_that_no_call_blocks_the_server(world, later):
    for ticket in [world.hold(eta_ms=later) for _ in range(11)]:
        world.make_due(ticket)
    for ticket in [world.hold(expires_ms=later) for _ in range(5)]:
        world.make_expired(ticket)
    assert [world.ledger.promote() for _ in range(4)] == [(4, 4), (4, 1), (3, 0), (0, 0)]
