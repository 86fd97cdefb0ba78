"""QUARANTINE_DEVICE: what a GPU's worker finds wrong with its device closes it, until it finds nothing any more."""

import pytest

from celery_gpulease.ledger.turns import Program
from celery_gpulease.ledger.views import gpu_rows

GPU = "GPU-7"
WHY = "something else uses it: process 1 (python, 900 MiB)"


@pytest.fixture
def worker(world):
    return world.join(GPU)


def quarantined(world, reason=WHY, **how):
    return world.ledger.quarantine_device(GPU, reason, **how)


def test_it_gets_no_work_and_status_says_why(world, worker):
    assert quarantined(world) == "quarantined"
    ticket = world.hold()
    assert (world.state(ticket), worker.claim().reason) == ("pending", "quarantine")
    (row,) = gpu_rows(world.ledger)
    assert (row.state, row.reason) == ("quarantined", WHY)


def test_it_is_given_work_at_once_when_nothing_is_wrong_any_more(world, worker):
    quarantined(world)
    ticket = world.hold()
    quarantined(world, "")
    assert (world.state(ticket), world.closed(GPU)) == ("claimed", {})
    assert [what for what in world.journal() if "quarantine" in what] == ["quarantined", "quarantine_ended"]


def test_it_is_said_again_and_again_and_written_down_once(world, worker):
    quarantined(world)
    assert quarantined(world, "another reason") == "unchanged"
    assert world.closed(GPU)["device"] == "another reason"
    assert quarantined(world, "") == "opened"
    assert quarantined(world, "") == "unchanged"
    assert [what for what in world.journal() if "quarantine" in what] == ["quarantined", "quarantine_ended"]


def test_a_report_does_not_end_it(world, worker):
    quarantined(world)
    worker.report()
    assert worker.claim().reason == "quarantine"


@pytest.mark.parametrize("name", [GPU, "node:3"])
def test_a_strangers_lease_is_his_right_to_use_the_gpu_by_either_name(world, worker, name):
    world.stranger_takes(name)
    assert quarantined(world) == quarantined(world, has_ended=True) == "busy"
    assert world.closed(GPU) == {}


def test_so_is_a_claim_but_for_one_that_is_over(world, worker):
    ticket, waiting = world.hold(), world.hold()
    worker.claim()
    run = worker.run()
    assert quarantined(world) == "busy"
    assert quarantined(world, has_ended=True) == "quarantined"
    world.ledger.requeue(run, "killed", counted=True)
    assert world.states(ticket, waiting) == ["pending", "pending"]


def test_a_program_that_a_new_worker_finds_there_holds_the_gpu_and_may_use_it(world):
    world.join(GPU).leave()
    world.listen("program")
    claim = world.ledger.attend(Program("program", "run: train", "node", "default", 0), "").claim
    world.ledger.start(claim, "nonce", "program", acks_late=False, limit=1, stores_result=False)
    world.join(GPU)
    assert quarantined(world, has_ended=True) == "busy"
    assert world.closed(GPU) == {}


def test_it_stays_when_another_cause_ends_and_the_other_way_round(world, worker):
    quarantined(world)
    world.ledger.quarantine(GPU, "something is left", "told")
    quarantined(world, "")
    assert worker.claim().reason == "quarantine"
    quarantined(world)
    world.ledger.quarantine(GPU, "it is gone", "")
    assert worker.claim().reason == "quarantine"
    quarantined(world, "")
    assert worker.claim() is None


def test_the_next_worker_looks_for_itself_and_the_same_one_has_looked(world, worker):
    quarantined(world)
    worker.join()
    assert worker.claim().reason == "quarantine"
    worker.leave()
    assert world.join(GPU).claim() is None


def test_a_drain_outlasts_it(world, worker):
    quarantined(world)
    world.drained(GPU)
    ticket = world.hold()
    quarantined(world, "")
    assert world.state(ticket) == "pending"
