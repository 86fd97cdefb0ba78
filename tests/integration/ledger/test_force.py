"""FORCE: an operator takes a lease away, whoever has it; what ran under it never takes it back."""

import pytest

from celery_gpulease.exceptions import LedgerUnavailable


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def claim(world, worker):
    world.hold(task_id="one")
    worker.claim()
    return worker.pop()


@pytest.fixture
def run(worker, claim):
    assert worker.start(claim) == "run"
    return claim


def test_a_run_loses_its_lease_and_becomes_a_tail(world, run):
    found = world.ledger.force("node:0")
    assert (found.word, found.gpu, found.loser) == ("started", "node:0", "proj.render[one] (gpu@node)")
    assert world.lease() is None
    assert (world.state(run.ticket), world.ticket(run.ticket)["why"]) == ("tail", "forced")
    assert world.claim_of()["state"] == "tail"
    assert world.journal()[-1] == "forced"


def test_its_worker_is_told_at_once_also_where_keys_tell_nothing(world, run):
    world.ledger.force("node:0")
    assert world.heard() == [(world.ledger.keys.here("node:0"), "lease")]


def test_the_run_is_lost_and_is_still_its_tasks_only_one(world, run):
    world.ledger.force("node:0")
    assert world.ledger.is_lost(run)
    assert not world.ledger.is_elsewhere(run)


def test_other_programs_may_take_the_gpu_and_no_task_of_ours_until_the_run_is_over(world, worker, run):
    waiting = world.hold()
    world.ledger.force("node:0")
    assert worker.claim().reason == "leased"
    assert world.ledger.dispatch("node:0") == "closed"
    assert world.stranger_takes()
    world.ledger.release(run)
    assert (world.lease(), world.state(waiting)) == ("stranger", "pending")


def test_asked_again_it_says_the_same_and_changes_nothing(world, run):
    found = world.ledger.force("node:0")
    before = world.everything()
    assert world.ledger.force("node:0") == found
    assert world.everything() == before


def test_a_lapsed_lease_of_a_run_is_taken_too(world, run):
    world.lapse()
    assert world.ledger.force("node:0").word == "started"
    assert world.ledger.renew(run) == "lost"
    assert world.lease() is None


def test_a_start_that_is_repeated_does_not_take_the_lease_back(world, worker, run):
    waiting = world.hold()
    world.ledger.force("node:0")
    assert worker.start(run) == "foreign"  # its first answer was lost, and it has not begun
    assert world.lease() is None
    assert world.claim_of() == {}
    assert world.ticket(run.ticket)["deliveries"] == "0"
    assert worker.claim() == run.ticket
    assert world.states(run.ticket, waiting) == ["claimed", "pending"]


def test_its_retry_is_held_and_then_it_is_superseded(world, run):
    world.ledger.force("node:0")
    world.drained()
    retry = world.hold(task_id="one", run=run)
    assert world.states(run.ticket, retry) == ["tail", "scheduled"]
    assert world.ledger.requeue(run, "lost", counted=True) == "ended"
    world.ledger.promote()
    assert world.states(run.ticket, retry) == ["ended", "pending"]


def test_a_worker_that_stops_gives_it_back(world, worker, run):
    world.ledger.force("node:0")
    worker.leave()
    assert world.state(run.ticket) == "pending"


def test_what_was_not_started_goes_back_to_its_place_uncounted(world, worker, claim):
    later = world.hold()
    found = world.ledger.force("node:0")
    assert (found.word, found.loser) == ("claimed", "proj.render[one] (gpu@node)")
    assert worker.start(claim) == "stale"
    again = worker.pop()  # first in line, and the GPU is free
    assert (again.ticket, again.delivery) == (claim.ticket, 1)
    assert world.line() == [later]


def test_what_was_not_started_goes_to_another_gpu_where_one_is_free(world, worker, claim):
    other = world.join("node:1")
    other.claim()
    world.want("node:0")
    world.ledger.force("node:0")
    assert other.pop().ticket == claim.ticket
    assert (world.lease(), worker.pop()) == (None, None)


def test_a_strangers_lease_goes_and_the_next_in_line_gets_the_gpu(world, worker):
    world.stranger_takes()
    waiting = world.hold()
    found = world.ledger.force("node:0")
    assert (found.word, found.loser) == ("foreign", "stranger")
    assert worker.run().ticket == waiting


def test_a_strangers_lease_over_a_tail_goes_and_the_tail_goes_on(world, run):
    world.ledger.give_back(run)
    world.stranger_takes()
    assert world.ledger.force("node:0").loser == "stranger"
    assert (world.lease(), world.ticket(run.ticket)["why"]) == (None, "early")
    assert world.ledger.renew(run) == "tail"


def test_a_strangers_lease_over_a_run_that_did_not_notice_goes_and_the_run_takes_its_own_back(world, run):
    world.lapse()
    world.stranger_takes()
    assert world.ledger.force("node:0").loser == "stranger"
    assert world.ledger.renew(run) == "regained"


def test_where_nobody_has_the_lease_it_is_said_so(world, worker):
    assert (world.ledger.force("node:0").word, world.journal()) == ("free", [])


def test_what_was_given_back_early_has_none(world, run):
    world.ledger.give_back(run)
    assert world.ledger.force("node:0").word == "free"
    assert world.ticket(run.ticket)["why"] == "early"


def test_an_unknown_gpu_is_said_to_be_unknown(world):
    assert world.ledger.force("nobody:0").word == "unknown"


@pytest.mark.parametrize("name", ["GPU-7", "node:3"])
def test_either_name_will_do(world, name):
    worker = world.join("GPU-7")
    world.hold(pin="GPU-7")
    worker.claim()
    worker.run()
    assert world.ledger.force(name).gpu == "GPU-7"


def test_where_somebody_deleted_the_ticket_its_lease_goes_like_a_strangers(world, worker, run):
    world.lose_ticket(run.ticket)
    world.client.delete(world.key("message", run.ticket))
    assert (world.ledger.force("node:0").word, world.lease()) == ("foreign", None)
    assert world.ledger.renew(run) == "ended"
    waiting = world.hold()
    assert world.states(waiting) == ["claimed"]


def test_where_publishing_is_refused_the_lease_goes_all_the_same(world, run):
    world.client.execute_command("ACL", "SETUSER", "default", "-publish")
    try:
        assert world.ledger.force("node:0").word == "started"
    finally:
        world.client.execute_command("ACL", "SETUSER", "default", "+publish")
    assert world.lease() is None


def test_a_full_server_lets_it(world, run):
    world.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(LedgerUnavailable):
            world.hold()
        assert world.ledger.force("node:0").word == "started"
        assert world.ledger.renew(run) == "lost"
    finally:
        world.client.config_set("maxmemory", "0")
    assert world.lease() is None
