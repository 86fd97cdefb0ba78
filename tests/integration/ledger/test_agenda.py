"""AGENDA: what is due, and in how many seconds to look again."""

import pytest

HOUR_MS = 3_600_000


def test_where_nothing_happens_there_is_nothing_to_wait_for(world):
    found = world.ledger.agenda()
    assert (found.deadline, found.due, found.ending, found.lapsed) == (None, None, None, [])
    assert abs(found.now_ms - world.now_ms()) < 1000


def test_the_earliest_deadline_of_a_lease(world):
    world.hold()
    world.join().claim()
    found = world.ledger.agenda()
    assert found.deadline == pytest.approx(30, abs=1)
    assert found.lapsed == []


def test_lapsed_leases_are_named(world):
    for gpu in ("node:0", "node:1"):
        world.hold()
        world.join(gpu).claim()
    world.lapse("node:1")
    found = world.ledger.agenda()
    assert (found.deadline, found.lapsed) == (0, ["node:1"])


@pytest.mark.parametrize(("eta", "expires", "due"), [(1, 0, 1), (0, 2, 2), (1, 2, 1), (2, 1, 1)])
def test_the_earliest_of_what_is_due_or_expires(world, eta, expires, due):
    now = world.now_ms()
    world.hold(eta_ms=eta and now + eta * HOUR_MS, expires_ms=expires and now + expires * HOUR_MS)
    assert world.ledger.agenda().due == pytest.approx(due * 3600, abs=1)


def test_the_next_end_to_be_written(world):
    ticket = world.hold(expires_ms=world.now_ms() + HOUR_MS)
    world.make_expired(ticket)
    assert world.ledger.agenda().due == 0
    world.ledger.promote()
    assert world.ledger.agenda().ending == 0
    world.ledger.end()
    assert world.ledger.agenda().ending == pytest.approx(30, abs=1)
