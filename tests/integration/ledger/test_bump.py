"""BUMP: what waits gets another priority, and within it keeps its arrival."""

import pytest

from celery_gpulease.ledger.answers import Bumped

HOUR_MS = 3_600_000


@pytest.fixture
def tickets(world):
    """Five in one line, by priority 5."""
    return [world.hold(task_id=f"task {n}", priority=5) for n in range(5)]


@pytest.mark.parametrize(
    ("priority", "position", "order"),
    [(0, 1, [3, 0, 1, 2, 4]), (5, 4, [0, 1, 2, 3, 4]), (255, 5, [0, 1, 2, 4, 3])],
)
def test_its_position_is_the_new_one(world, tickets, priority, position, order):
    assert world.ledger.bump("task 3", priority) == Bumped("bumped", [("default", position)])
    assert world.line() == [tickets[n] for n in order]
    assert world.ticket(tickets[3])["priority"] == str(priority)


def test_within_a_priority_who_came_first_still_goes_first(world, tickets):
    world.ledger.bump("task 3", 1)
    world.ledger.bump("task 1", 1)
    assert world.line() == [tickets[n] for n in (1, 3, 0, 2, 4)]


def test_bumped_back_it_has_its_old_place(world, tickets):
    world.ledger.bump("task 2", 0)
    world.ledger.bump("task 2", 5)
    assert world.line() == tickets


def test_doing_it_again_changes_nothing_and_says_the_same(world, tickets):
    first = world.ledger.bump("task 3", 0)
    line = world.line()
    assert (world.ledger.bump("task 3", 0), world.line()) == (first, line)


def test_the_next_claim_is_for_it_and_given_back_it_keeps_its_new_place(world, tickets):
    worker = world.join()
    world.ledger.bump("task 3", 0)
    assert worker.claim() == tickets[3]
    run = worker.run()
    world.drained()
    world.ledger.requeue(run, "rejected", counted=False)
    assert world.line()[0] == tickets[3]


def test_what_is_not_due_yet_enters_its_line_by_it(world, tickets):
    later = world.hold(task_id="later", priority=9, eta_ms=world.now_ms() + HOUR_MS)
    assert world.ledger.bump("later", 0) == Bumped("bumped", [("default", None)])
    world.make_due(later)
    world.ledger.promote()
    assert world.line() == [later, *tickets]


def test_what_was_deferred_comes_back_by_it_and_by_its_arrival(world, tickets):
    worker = world.join()
    worker.claim()
    world.ledger.defer(worker.pop(), 60)
    world.drained()
    assert world.ledger.bump("task 0", 9).places == [("default", None)]
    world.make_due(tickets[0])
    world.ledger.promote()
    assert world.line() == [*tickets[1:], tickets[0]]


def test_a_pinned_one_moves_in_its_gpus_line(world):
    first, second = world.hold(pin="node:0", priority=3), world.hold(task_id="one", pin="node:0", priority=3)
    assert world.ledger.bump("one", 2) == Bumped("bumped", [("node:0", 1)])
    assert world.client.zrange(world.key("pinned", "node:0"), 0, -1) == [second, first]
    assert world.join().claim() == second


@pytest.mark.parametrize("state", ["claimed", "started", "tail"])
def test_what_a_gpu_has_already_stays_as_it_is(world, state):
    worker = world.join()
    world.hold(task_id="one")
    worker.claim()
    if state != "claimed":
        run = worker.run()
    if state == "tail":
        world.ledger.give_back(run)
    before = world.everything()
    assert world.ledger.bump("one", 0) == Bumped("given", [])
    assert world.everything() == before


def test_what_ends_and_what_nobody_knows_is_said_so(world):
    world.hold(task_id="one")
    world.ledger.cancel("one")
    assert world.ledger.bump("one", 0).word == "ending"
    assert world.ledger.bump("nobody", 0).word == "unknown"


def test_a_retry_that_waits_is_bumped_beside_the_run_that_sent_it(world):
    worker = world.join()
    world.hold(task_id="one")
    worker.claim()
    run = worker.run()
    world.hold()
    world.hold(task_id="one", priority=1, run=run)
    assert world.ledger.bump("one", 0) == Bumped("bumped", [("default", None)])
    world.ledger.release(run)
    world.ledger.promote()
    assert world.ledger.bump("one", 0) == Bumped("bumped", [("default", 1)])
