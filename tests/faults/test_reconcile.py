"""Poison: a message that no worker starts, a task that kills its worker each time; and who is busy is left in peace."""

import threading

import pytest

from celery_gpulease import LeaseLost
from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.reconcile.corrections import reconcile
from tests.faults.world import HOST, LONG, SOON
from tests.waiting import wait_until


def entries(world, what):
    """What the journal of the ledger says of this, in order."""
    return [fields for _, fields in world.client.xrange("gpu:journal") if fields["what"] == what]


@pytest.mark.long
def test_a_message_that_no_worker_starts_fails_after_three_gpus_and_closes_none(world):
    for gpu in range(3):
        world.worker(gpu)
    poison = world.send("never_starts")
    wait_until(lambda: entries(world, "quarantined"), SOON, "a quarantine")
    others = [world.send("add", n, n) for n in range(4)]
    world.succeeds(*others)
    assert world.state(poison) == "PENDING", "others did not run in between"
    assert isinstance(world.ends(poison, "FAILURE"), LeaseLost)
    assert world.runs(poison) == []
    held_up = [line["gpu"] for line in world.journal() if line["what"] == "held up"]
    assert sorted(held_up) == [f"{HOST}:{gpu}" for gpu in range(3)]
    assert [one["gpu"] for one in entries(world, "quarantined")] == held_up[:2]
    wait_until(lambda: len(entries(world, "quarantine_ended")) == 2, SOON, "the quarantines to end")
    assert [world.client.hgetall(f"gpu:closed:{HOST}:{gpu}") for gpu in range(3)] == [{}] * 3
    world.succeeds(*[world.send("add", n, n, gpu=f"{HOST}:{n}") for n in range(3)])


@pytest.fixture
def supervised(world):
    """A worker that is started again whenever it has ended, as systemd does."""
    over = threading.Event()
    started = []

    def supervise():
        while not over.is_set():
            process = world.processes.start(
                "celery", "-A", "proj", "worker", "--gpu", "0", "-l", "info", name="supervised"
            )
            started.append(process)
            while process.exit_code is None and not over.wait(0.05):
                pass

    thread = threading.Thread(target=supervise)
    thread.start()
    yield started
    over.set()
    thread.join()


@pytest.mark.long
def test_a_task_that_kills_its_worker_each_time_fails_after_three_runs(world, supervised):
    poison = world.send("die_with_main", link_error=world.app.signature("proj.errback", queue="others"))
    others = [world.send("add", n, n) for n in range(3)]
    plain = world.processes.start("celery", "-A", "proj", "worker", "-c", "1", "-Q", "others", name="plain")
    error = world.ends(poison, "FAILURE", 2 * LONG)
    assert isinstance(error, LeaseLost)
    assert "it was given out 3 times" in str(error)
    assert len(world.runs(poison)) == 3
    world.succeeds(*others)
    assert len(supervised) >= 4
    wait_until(lambda: [line for line in world.journal() if line["what"] == "errback"], SOON, f"the errback; {plain!r}")


@pytest.mark.long
def test_others_run_between_the_deaths_that_a_task_brings(world, supervised):
    world.worker(1)
    poison = world.send("die_with_main", gpu=f"{HOST}:0")
    world.started(poison)
    others = [world.send("add", n, n) for n in range(3)]
    world.succeeds(*others)
    assert world.state(poison) == "PENDING"
    world.ends(poison, "FAILURE", 2 * LONG)
    assert all(len(world.runs(task)) == 1 for task in others)


def test_a_busy_solo_worker_is_left_in_peace_by_ten_reconciliations(world):
    """It answers no remote control while it runs; its heartbeat's report is the evidence."""
    world.worker(0, "-P", "solo")
    task = world.send("wait_for", "go")
    world.started(task)
    for number in range(10):
        found = wait_until(lambda n=number: wait_for_turn(world, n), SOON, "a turn")
        assert found == [[]]
    assert not entries(world, "corrected")
    world.open("go")
    world.succeeds(task)
    assert len(world.runs(task)) == 1


def wait_for_turn(world, number):
    """One reconciliation, unless the worker itself reconciles just now."""
    try:
        found = reconcile(world.ledger, f"me-{number}")
    except LedgerUnavailable:
        return None
    return None if found is None else [found]
