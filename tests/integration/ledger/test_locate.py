"""LOCATE: where a task is now."""

import pytest

from celery_gpulease.ledger.journal import entries_backward
from celery_gpulease.ledger.story import story_of, whereabouts


@pytest.fixture
def where(world):
    """State, GPU and position of the tickets of a task."""

    def look(task_id):
        return [(one.state, one.gpu, one.position) for one in whereabouts(world.ledger, task_id)]

    return look


def test_a_task_is_found_in_each_of_its_states(world, where):
    worker = world.join()
    world.hold(task_id="one")
    worker.claim()
    world.hold(task_id="two")
    world.hold(task_id="three", priority=1)
    world.hold(task_id="later", eta_ms=world.now_ms() + 60_000)
    assert where("one") == [("claimed", "node:0", None)]
    assert where("two") == [("pending", "", 1)]
    assert where("three") == [("pending", "", 2)]
    assert where("later") == [("scheduled", "", None)]
    (later,) = whereabouts(world.ledger, "later")
    assert 59 < later.due_seconds <= 60
    claim = worker.run()
    assert where("one") == [("started", "node:0", None)]
    world.ledger.give_back(claim)
    assert where("one") == [("tail", "node:0", None)]
    world.ledger.cancel("two")
    assert where("two") == [("ending", "", None)]
    world.ledger.release(claim)
    assert where("one") == where("nobody") == []


def test_a_task_that_was_sent_twice_has_two_places(world, where):
    world.hold(task_id="one")
    world.hold(task_id="one", pin="node:3")
    assert sorted(where("one")) == [("pending", "", 1), ("pending", "", 1)]


def test_a_story_has_every_entry_of_its_task_in_order_and_no_other(world):
    worker = world.join()
    world.hold(task_id="one")
    worker.claim()
    claim = worker.run()
    world.hold(task_id="two")
    world.ledger.release(claim)
    assert [one.what for one in story_of(world.ledger, "one")] == ["held", "claimed", "started", "released"]
    assert [one.gpu for one in story_of(world.ledger, "one")] == ["", "node:0", "node:0", "node:0"]
    assert {one.task for one in story_of(world.ledger, "one")} == {"proj.render"}
    assert story_of(world.ledger, "nobody") == []


def test_what_vanished_before_its_story_was_told_is_found_by_its_ticket(world):
    ticket = world.hold(task_id="one")
    world.lose_ticket(ticket)
    world.join().claim()
    assert [one.what for one in story_of(world.ledger, "one")] == ["held", "vanished"]


def test_the_journal_is_read_backward_through_all_its_pages(world):
    number = 2345
    with world.client.pipeline(transaction=False) as pipe:
        for at in range(number):
            entry = {"what": "held", "ticket": f"t{at}", "task_id": f"{at}", "task": "x", "gpu": "", "detail": ""}
            pipe.xadd(world.key("journal"), entry)
        pipe.execute()
    assert [one.task_id for one in entries_backward(world.ledger)] == [str(at) for at in reversed(range(number))]
