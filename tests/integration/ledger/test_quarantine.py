"""A GPU that does not start what its living worker was given gets no work for a while; a bad message closes none."""

import pytest

from celery_gpulease.ledger.views import gpu_rows

HEARTBEAT_MS, LONGEST_MS = 10_000, 300_000


@pytest.fixture
def worker(world):
    return world.join()


def unstarted(world, gpu="node:0"):
    """The claim of a GPU lapses, and is reaped."""
    world.lapse(gpu)
    assert world.ledger.reap(gpu) == "reaped"


def left_ms(world, gpu="node:0"):
    return int(world.closed(gpu)["until_ms"]) - world.now_ms()


def is_quarantined(world, gpu="node:0"):
    return "quarantine" in world.closed(gpu)


def test_a_claim_that_was_not_started_closes_its_gpu_for_a_heartbeat(world, worker):
    ticket = world.hold(task_id="it")
    worker.claim()
    unstarted(world)
    assert HEARTBEAT_MS - 1000 < left_ms(world) <= HEARTBEAT_MS
    assert world.state(ticket) == "pending"
    assert worker.claim().reason == "quarantine"
    assert world.journal()[-1] == "quarantined"
    assert world.count("quarantined") == 1


def test_status_names_the_task(world, worker):
    world.hold(task_id="it")
    worker.claim()
    unstarted(world)
    (row,) = gpu_rows(world.ledger)
    assert row.state == "quarantined"
    assert row.reason == "proj.render[it] was not started within 30 s; closed for 10 s or more (1 in a row)"


def test_what_was_not_started_goes_to_another_gpu_at_once(world, worker):
    ticket = world.hold()
    worker.claim()
    other = world.join("node:1")
    other.claim()
    unstarted(world)
    assert other.pop().ticket == ticket


def test_it_ends_with_the_first_idle_report_after_its_time(world, worker):
    ticket = world.hold()
    worker.claim()
    unstarted(world)
    worker.report()
    assert is_quarantined(world)
    world.quarantine_is_over()
    assert worker.claim().reason == "quarantine"  # nobody has said that it is well
    worker.report()
    assert not is_quarantined(world)
    assert world.journal()[-2:] == ["quarantine_ended", "claimed"]
    assert worker.pop().ticket == ticket


def test_one_that_ends_later_than_any_of_ours_is_over(world, worker):
    world.hold()
    worker.claim()
    unstarted(world)
    world.client.hset(world.key("closed", "node:0"), "until_ms", world.now_ms() + 2 * LONGEST_MS)  # by another clock
    worker.report()
    assert not is_quarantined(world)


def test_a_report_that_says_that_it_runs_something_does_not_end_it(world, worker):
    world.hold()
    worker.claim()
    claim = worker.pop()
    unstarted(world)
    world.quarantine_is_over()
    worker.report(claim)
    assert is_quarantined(world)


def test_nobody_claims_for_a_gpu_whose_worker_does_not_consume_when_its_quarantine_ends(world, worker):
    ticket = world.hold()
    worker.claim()
    unstarted(world)
    worker.die()
    world.quarantine_is_over()
    worker.report()
    assert (is_quarantined(world), world.state(ticket), world.free()) == (False, "pending", [])


def test_each_one_lasts_twice_as_long_up_to_five_minutes(world, worker):
    lasted = []
    for _ in range(8):
        ticket = world.hold()
        worker.claim()
        unstarted(world)
        lasted.append(round(left_ms(world) / 1000))
        world.ledger.defer(take(world, worker), 60)  # another task is next
        assert world.state(ticket) == "scheduled"
    assert lasted == [10, 20, 40, 80, 160, 300, 300, 300]


def take(world, worker):
    """The quarantine is over, and the worker is given work."""
    world.quarantine_is_over()
    worker.report()
    return worker.pop()


def test_a_start_begins_the_count_anew(world, worker):
    world.hold()
    for _ in range(2):
        worker.claim()
        unstarted(world)
        world.quarantine_is_over()
        worker.report()
    run = worker.run()
    assert world.closed() == {}
    world.ledger.release(run)
    world.hold()
    worker.claim()
    unstarted(world)
    assert left_ms(world) <= HEARTBEAT_MS


@pytest.mark.parametrize("how", ["die", "lapse"])
def test_a_gpu_whose_worker_is_dead_is_offline_and_not_quarantined(world, worker, how):
    world.hold()
    worker.claim()
    if how == "die":
        worker.die()
    else:
        world.lapse_presence()
    unstarted(world)
    assert not is_quarantined(world)
    assert gpu_rows(world.ledger)[0].state == "offline"


def test_after_an_outage_nobody_is_to_blame(world, worker):
    ticket = world.hold()
    worker.claim()
    world.outage()
    unstarted(world)
    assert not is_quarantined(world)
    assert (world.state(ticket), world.ticket(ticket).get("returns")) == ("claimed", None)  # again, at once


@pytest.mark.parametrize("gpus", [3, 1])
def test_a_ticket_that_ends_as_unstarted_was_to_blame_and_its_quarantines_end(world, gpus):
    names = [f"node:{number}" for number in range(gpus)]
    workers = [world.join(name) for name in names]
    bad = world.hold()
    for number in range(3 if gpus == 3 else 10):
        gpu = names[number % gpus]
        if gpus == 1:
            world.quarantine_is_over()
            workers[0].report()
        workers[number % gpus].claim()
        unstarted(world, gpu)
    assert world.ticket(bad)["why"] == "unstarted"
    assert [world.closed(name) for name in names] == [{}] * gpus
    assert sorted(world.free()) == names
    assert world.journal().count("quarantine_ended") == (2 if gpus == 3 else 9)


def test_those_that_are_acquitted_take_work_at_once(world):
    workers = [world.join(f"node:{number}") for number in range(3)]
    bad, *others = world.hold(), world.hold(), world.hold(), world.hold()
    for number, worker in enumerate(workers):
        assert worker.claim() == bad
        unstarted(world, f"node:{number}")
    assert world.states(bad, *others) == ["ending", "claimed", "claimed", "claimed"]


def test_another_tasks_quarantine_stays(world):
    workers = [world.join(f"node:{number}") for number in range(3)]
    for worker in workers:
        world.drained(worker.gpu)
    bad = world.hold()
    for number, worker in enumerate(workers):
        world.ledger.drain(worker.gpu, drained=False)
        unstarted(world, worker.gpu)
        world.drained(worker.gpu)
        if number == 0:
            world.quarantine_is_over(worker.gpu)
            worker.report()
            other = world.hold(pin=worker.gpu)
            world.ledger.drain(worker.gpu, drained=False)
            assert worker.pop() is not None
            unstarted(world, worker.gpu)
            assert world.state(other) == "pending"
    assert world.ticket(bad)["why"] == "unstarted"
    assert [is_quarantined(world, worker.gpu) for worker in workers] == [True, False, False]


def test_where_every_gpu_is_quarantined_whoever_reports_first_goes_on(world):
    workers = [world.join(f"node:{number}") for number in range(2)]
    ticket = world.hold()
    for number, worker in enumerate(workers):
        worker.claim()
        unstarted(world, f"node:{number}")
    assert world.state(ticket) == "pending"
    world.quarantine_is_over("node:1")
    workers[1].report()
    assert workers[1].pop().ticket == ticket


def test_a_worker_that_starts_again_is_still_quarantined(world, worker):
    world.hold()
    worker.claim()
    unstarted(world)
    worker.die()
    world.lapse_presence()
    assert world.join().claim().reason == "quarantine"


def test_a_drain_outlasts_it(world, worker):
    ticket = world.hold()
    worker.claim()
    unstarted(world)
    world.drained()
    world.quarantine_is_over()
    worker.report()
    assert (is_quarantined(world), world.closed()["drain"], world.state(ticket)) == (False, "1", "pending")


def test_a_gpu_that_is_undrained_is_still_quarantined(world, worker):
    ticket = world.hold()
    worker.claim()
    unstarted(world)
    world.drained()
    world.ledger.drain("node:0", drained=False)
    assert world.state(ticket) == "pending"


def test_one_that_says_no_time_ends_with_the_next_report(world, worker):
    """Somebody has set it by hand."""
    world.client.hset(world.key("closed", "node:0"), "quarantine", "fell off the bus")
    assert worker.claim().reason == "quarantine"
    worker.report()
    assert worker.claim() is None


def test_a_lost_reply_changes_nothing(world, worker):
    world.hold()
    worker.claim()
    unstarted(world)
    before = world.closed()
    assert world.ledger.reap("node:0") == "none"
    assert world.closed() == before


def test_who_is_acquitted_stays_closed_while_something_is_left_there(world):
    workers = [world.join(f"node:{number}") for number in range(3)]
    bad = world.hold()
    for number, worker in enumerate(workers):
        assert worker.claim() == bad
        unstarted(world, worker.gpu)
        if number == 0:
            world.ledger.quarantine(worker.gpu, "somebody is left", "[]")
    assert world.closed() == {"quarantine": "somebody is left", "left": "[]", "until_ms": world.closed()["until_ms"]}
    assert "node:0" not in world.free()
    world.ledger.quarantine("node:0", "nobody is", "")
    assert "node:0" in world.free()
    while ending := world.ledger.end():
        world.ledger.finish(ending.ticket)


def test_what_was_not_started_is_no_lease_that_a_run_has_lost(world, worker):
    world.hold()
    worker.claim()
    unstarted(world)
    assert world.count("reaped") == 0
