"""ATTEND: whoever wants to run a program waits in the line of the tasks, for a GPU of its host, and must be there."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_gpulease.ledger.notifications import switch_on
from celery_gpulease.ledger.turns import Program
from celery_gpulease.ledger.views import gpu_rows, pending_rows, pool_rows
from celery_gpulease.reconcile.corrections import reconcile
from tests.integration.ledger.program_machine import ProgramMachine
from tests.integration.ledger.test_forgotten import Snapshots


class Waiter:
    """Stands in line as far as the ledger can tell: it listens, and asks."""

    def __init__(self, world, ticket, pool="default", host="node", priority=0):
        self.world, self.ticket, self.score = world, ticket, ""
        self.program = Program(ticket, f"run: {ticket}", host, pool, priority)
        world.listen(ticket)

    def ask(self, **given):
        turn = self.world.ledger.attend(self.program, self.score, **given)
        self.score = turn.score or self.score
        return turn

    def claim(self):
        turn = self.ask()
        assert turn.word == "claimed"
        return turn.claim

    def start(self, claim):
        return self.world.ledger.start(claim, "nonce", self.ticket, acks_late=False, limit=1, stores_result=False)

    def run(self):
        claim = self.claim()
        assert self.start(claim) == "run"
        return claim

    def die(self):
        self.world.deafen(self.ticket)


@pytest.fixture
def waiter(world):
    switch_on(world.ledger)  # else the reconciler does

    def made(ticket="program", **given):
        return Waiter(world, ticket, **given)

    return made


@pytest.fixture
def busy(world):
    """The run of a task on the only GPU."""
    worker = world.join()
    world.hold(ticket="busy")
    worker.claim()
    return worker.run()


# in line


def test_a_free_gpu_is_had_at_once_and_given_back(world, waiter):
    world.join("node:0").claim()
    program = waiter()
    turn = program.ask()
    assert (turn.word, turn.claim.gpu, turn.index) == ("claimed", "node:0", 0)
    assert program.start(turn.claim) == "run"
    assert world.ledger.renew(turn.claim) == "renewed"
    assert world.ledger.release(turn.claim) == "released"
    assert (world.lease(), world.free(), world.state("program")) == (None, ["node:0"], "ended")


def test_its_turn_comes_by_priority_and_arrival_among_the_tasks(world, waiter, busy):
    world.hold(ticket="second", priority=5)
    program = waiter(priority=5)
    assert program.ask().word == "waiting"
    world.hold(ticket="fourth", priority=5)
    world.hold(ticket="first", priority=1)
    rows = list(pending_rows(world.ledger, gpu_rows(world.ledger)))
    assert [row.task_id for row in rows] == ["task-5", "task-3", "program", "task-4"]
    assert [row.position for row in rows] == [1, 2, 3, 4]
    worker = world.worker()
    for claimed in ("first", "second"):
        world.ledger.release(busy)
        busy = worker.run(nonce=claimed)
        assert busy.ticket == claimed
    world.ledger.release(busy)
    assert ("gpu:here:program", "claimed") in world.heard()
    assert program.run().ticket == "program"
    assert worker.pop() is None


def test_a_gpu_of_another_host_passes_it_by_and_takes_the_next_task(world, waiter, busy):
    program = waiter()
    program.ask()
    world.hold(ticket="next")
    other = world.join("elsewhere:0")
    assert other.claim() == "next"
    assert world.state("program") == "pending"


def test_the_pool_of_a_gpu_decides_before_the_place(world, waiter, busy):
    world.ledger.release(busy)
    worker = world.join("node:1", pools=("a100", "default"))
    world.drained("node:1")
    program, late = waiter(priority=1), waiter("late", pool="a100", priority=9)
    world.stranger_takes("node:0")
    assert [program.ask().word, late.ask().word] == ["waiting", "waiting"]
    world.ledger.drain("node:1", drained=False)
    assert (late.ask().word, program.ask().word) == ("claimed", "waiting")
    assert worker.pop() is None


def test_asked_again_it_is_one_ticket_in_one_place(world, waiter, busy):
    program = waiter()
    first = program.ask()
    before = world.ticket("program")["score"]
    assert program.ask() == first
    assert (world.ticket("program")["score"], world.count("held")) == (before, 2)


def test_a_claim_is_said_again_until_it_has_started(world, waiter):
    world.join()
    program = waiter()
    claim = program.claim()
    assert program.claim() == claim
    assert program.start(claim) == program.start(claim) == "run"
    assert program.claim() == claim


def test_a_host_that_serves_no_such_pool_says_what_it_serves(world, waiter):
    world.join("node:0", pools=("default", "small"))
    turn = waiter(pool="a100").ask()
    assert (turn.word, turn.served) == ("unserved", {"node:0": "default,small"})
    assert waiter("other", host="nowhere").ask().served == {}
    assert world.states("program", "other") == [None, None]


# without a worker


def test_a_gpu_that_no_worker_serves_is_taken_by_who_waits_and_by_no_task(world, waiter):
    worker = world.join()
    worker.leave()
    worker.die()
    world.hold(ticket="task")
    first, second = waiter("first"), waiter("second")
    run = first.run()
    assert second.ask().word == "waiting"
    assert (world.state("task"), world.lease()) == ("pending", run.token)
    world.heard()
    world.ledger.release(run)
    assert ("gpu:here:second", "claimed") in world.heard()
    assert second.run().ticket == "second"


def test_a_living_worker_that_takes_no_work_keeps_its_gpu_from_programs_too(world, waiter):
    worker = world.join()
    worker.close()
    assert waiter().ask().word == "waiting"


def test_in_turn_also_where_another_asks_first(world, waiter):
    worker = world.join()
    first, second = waiter("first", priority=1), waiter("second", priority=2)
    world.stranger_takes()
    assert [one.ask().word for one in (second, first)] == ["waiting", "waiting"]
    worker.die()
    world.delete_lease()
    assert second.ask().word == "waiting"
    assert first.run().ticket == "first"


def test_behind_many_that_wait_no_more_it_asks_again_at_once(world, waiter):
    worker = world.join()
    world.stranger_takes()
    gone, program = [waiter(f"gone-{number}") for number in range(20)], waiter()
    for one in (*gone, program):
        assert one.ask().word == "waiting"
    for one in (worker, *gone):
        one.die()
    world.delete_lease()
    world.heard()
    assert program.ask().word == "waiting"
    assert ("gpu:here:program", "turn") in world.heard()
    assert program.run().ticket == "program"
    assert world.journal().count("left") == len(gone)


@pytest.mark.parametrize("undo", ["drain", "quarantine", "want"])
def test_not_where_it_is_closed_by_order_or_unwell_or_wanted(world, waiter, undo):
    worker = world.join()
    worker.leave()
    worker.die()
    if undo == "drain":
        world.drained()
    elif undo == "quarantine":
        world.ledger.quarantine("node:0", "somebody is left", "[]")
    else:
        world.want()
    program = waiter()
    assert program.ask().word == "waiting"
    if undo == "drain":
        world.ledger.drain("node:0", drained=False)
    elif undo == "quarantine":
        world.ledger.quarantine("node:0", "nobody is", "")
    else:
        world.unwant()
    assert program.ask().word == "claimed"


def test_not_where_something_is_left_also_where_the_last_worker_was_suspect_before(world, waiter):
    worker = world.join()
    slow = {"quarantine": "it did not start", "until_ms": world.now_ms() + 60_000}
    world.client.hset(world.key("closed", "node:0"), mapping=slow)
    world.ledger.quarantine("node:0", "somebody is left", "[]")
    worker.leave()
    worker.die()
    assert waiter().ask().word == "waiting"


def test_a_worker_that_comes_meanwhile_waits_for_its_end(world, waiter):
    worker = world.join()
    worker.leave()
    worker.die()
    run = waiter().run()
    worker = world.join()
    world.hold(ticket="task")
    assert worker.claim().reason == "leased"
    worker.report()
    world.ledger.release(run)
    assert worker.run().ticket == "task"


@pytest.mark.parametrize("how", ["leave", "bury"])
def test_a_worker_that_goes_meanwhile_takes_nothing_with_it(world, waiter, how):
    worker = world.join()
    run = waiter().run()
    worker.die()
    if how == "leave":
        worker.leave()
    else:
        assert world.ledger.bury("node:0", worker.presence.instance)
    assert world.ledger.renew(run) == "renewed"


def test_a_worker_that_leaves_lets_the_program_that_waits_have_its_gpu(world, waiter):
    worker = world.join()
    worker.close()
    program = waiter()
    assert program.ask().word == "waiting"
    world.heard()
    worker.leave()
    assert ("gpu:here:program", "claimed") in world.heard()
    assert program.run().ticket == "program"


def test_that_a_program_starts_says_nothing_of_the_worker(world, waiter):
    worker = world.join()
    world.client.hset("gpu:closed:node:0", mapping={"quarantines": 2, "quarantined_by": "another"})
    run = waiter().run()
    assert world.closed() == {"quarantines": "2", "quarantined_by": "another"}
    world.ledger.release(run)
    world.hold(ticket="task")
    worker.claim()
    worker.run()
    assert world.closed() == {}


# Redis was emptied, or has loaded an old snapshot


@pytest.fixture
def snapshots(redis_url):
    made = Snapshots(redis_url)
    yield made
    made.client.close()


def test_the_worker_of_its_gpu_is_told_of_its_fence(world, waiter):
    world.join()
    run = waiter().run()
    assert ("gpu:here:node:0", f"program {run.fence}") in world.heard()
    assert world.ledger.recall("node:0", 0) == run.fence
    world.ledger.release(run)
    assert world.ledger.recall("node:0", run.fence) == 0
    assert not world.client.exists("gpu:want:node:0")


@pytest.mark.parametrize("how", ["claim", "recall"])
def test_a_program_that_redis_has_forgotten_keeps_its_gpu_from_who_waits_until_it_has_beaten(
    world, waiter, snapshots, how
):
    worker = world.join()
    world.stranger_takes()
    world.hold(ticket="task")
    before = snapshots.take()
    world.client.delete("gpu:pending:default", "gpu:lease:node:0")
    run = waiter().run()
    snapshots.load(before)
    world.delete_lease()
    if how == "claim":
        assert world.ledger.claim(worker.gpu, run.fence).reason == "forgotten"
    else:
        assert world.ledger.recall(worker.gpu, run.fence) is None
    assert worker.claim().reason == "wanted"
    assert world.ledger.dispatch(worker.gpu) == "closed"
    assert world.ledger.renew(run) == "flushed"
    world.unwant()
    assert worker.claim().reason == "leased"
    world.ledger.release(run)
    assert worker.claim() == "task"


def test_what_began_after_a_program_keeps_nothing_back(world, waiter):
    worker = world.join()
    run = waiter().run()
    world.ledger.release(run)
    world.hold(ticket="task")
    later = worker.run()
    assert world.ledger.recall(worker.gpu, run.fence) == 0
    world.ledger.release(later)
    assert world.ledger.claim(worker.gpu, run.fence) is None


def test_who_was_cut_off_takes_only_what_a_living_worker_offers(world, waiter):
    world.join()
    world.stranger_takes()
    program = waiter()
    program.ask()
    world.deafen("node:0")  # as after a restart: its worker has not subscribed again, nor said what it runs
    world.delete_lease()
    assert program.ask(is_back=True).word == "waiting"
    world.listen("node:0")
    assert program.ask(is_back=True).word == "claimed"


# who waits no more


@pytest.mark.parametrize("how", ["deaf", "silent"])
def test_who_is_not_there_is_passed_over_and_finds_its_old_place_when_it_comes_back(world, waiter, busy, how):
    program = waiter()
    program.ask()
    place = world.ticket("program")["score"]
    world.hold(ticket="next")
    if how == "deaf":
        program.die()
    else:
        world.client.hset("gpu:ticket:program", "waits_until", 1)
    world.ledger.release(busy)
    run = world.worker().run()
    assert (run.ticket, world.state("program"), world.journal().count("left")) == ("next", None, 1)
    world.listen("program")
    assert program.ask().word == "waiting"
    assert world.ticket("program")["score"] == place


def test_the_reconciler_finds_who_waits_no_more(world, waiter, busy):
    program, living = waiter(), waiter("living")
    program.ask()
    living.ask()
    program.die()
    (found,) = reconcile(world.ledger, "me")
    assert (found.ticket, found.detail) == ("program", "it is a program, and nobody waits to run it")
    assert world.states("program", "living") == [None, "pending"]


def test_a_claim_that_nobody_started_goes_back_when_its_time_is_over_and_is_then_nobodys(world, waiter):
    world.join()
    program = waiter()
    program.claim()
    program.die()
    world.hold(ticket="next")
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert (world.state("program"), world.claim_of()["ticket"]) == (None, "next")
    assert "quarantine" not in world.closed()


# steering


def test_cancelled_it_has_ended_and_whoever_waits_is_told(world, waiter, busy):
    program = waiter()
    program.ask()
    found = world.ledger.cancel("program")
    assert (found.is_known, [one.task for one in found.taken], found.running_on) == (True, ["run: program"], [])
    assert ("gpu:here:program", "ended") in world.heard()
    assert program.ask().word == "ended"
    assert world.ledger.end() is None  # there is nothing to write elsewhere
    assert not world.ledger.cancel("program").is_known


def test_cancelled_when_it_was_claimed_its_gpu_goes_to_the_next(world, waiter):
    world.join()
    program = waiter()
    claim = program.claim()
    world.hold(ticket="next")
    assert world.ledger.cancel("program").taken
    assert program.start(claim) == "stale"
    assert world.claim_of()["ticket"] == "next"


def test_what_runs_is_not_cancelled(world, waiter):
    world.join()
    waiter().run()
    assert world.ledger.cancel("program").running_on == ["node:0"]


def test_bumped_it_comes_first(world, waiter, busy):
    program = waiter(priority=5)
    program.ask()
    world.hold(ticket="task", priority=1)
    assert world.ledger.bump("program", 0).word == "bumped"
    world.ledger.release(busy)
    assert program.claim().ticket == "program"


def test_by_force_it_loses_its_gpu_which_is_free_when_it_is_gone(world, waiter):
    worker = world.join()
    run = waiter().run()
    found = world.ledger.force("node:0")
    assert (found.word, found.loser) == ("program", "run: program[program]")
    assert world.ledger.force("node:0") == found
    assert ("gpu:here:program", "lease") in world.heard()
    world.hold(ticket="next")
    assert world.ledger.renew(run) == "lost"
    assert world.state("next") == "pending"
    world.ledger.release(run)
    assert worker.claim() == "next"


def test_a_worker_that_comes_does_not_take_its_dying_for_its_end(world, waiter):
    worker = world.join()
    worker.leave()
    worker.die()
    run = waiter().run()
    world.ledger.force("node:0")
    worker = world.join()
    world.hold(ticket="next")
    assert world.ledger.renew(run) == "lost"
    assert worker.claim().reason == "leased"
    world.ledger.release(run)
    assert worker.claim() == "next"


def test_the_death_of_its_gpus_worker_is_not_its_end_while_it_is_dying_itself(world, waiter):
    worker = world.join()
    run = waiter().run()
    world.ledger.force("node:0")
    worker.die()
    world.ledger.bury("node:0", worker.presence.instance)
    assert (world.ledger.renew(run), world.claim_of()["state"]) == ("lost", "tail")


def test_a_drained_gpu_gives_back_what_was_not_started_and_keeps_what_runs(world, waiter):
    world.join()
    program = waiter()
    claim = program.claim()
    world.heard()
    world.drained()
    assert ("gpu:here:program", "turn") in world.heard()
    assert program.start(claim) == "stale"
    assert (program.ask().word, world.ticket("program")["deliveries"]) == ("waiting", "0")
    world.ledger.drain("node:0", drained=False)
    run = program.run()
    world.drained()
    assert world.ledger.renew(run) == "renewed"


# views


def test_views_show_it_among_the_tasks(world, waiter):
    world.join()
    waiter("first").run()
    second = waiter("second")
    second.ask()
    (gpu,) = gpu_rows(world.ledger)
    assert (gpu.state, gpu.task, gpu.task_id, gpu.reason) == ("leased", "run: first", "first", None)
    assert pool_rows(world.ledger, [gpu])["default"].pending == 1
    (row,) = pending_rows(world.ledger, [gpu])
    assert (row.task, row.pool, row.position) == ("run: second", "default", 1)
    assert row.reason == "it waits for a GPU of host node: every GPU of pool 'default' is leased"


# what its own renewals are the only proof of


def test_a_worker_that_reports_nothing_is_no_evidence_against_it(world, waiter):
    worker = world.join()
    run = waiter().run()
    world.client.hset("gpu:claim:node:0", "started_ms", 1)
    worker.report()
    assert reconcile(world.ledger, "me") == []
    assert world.ledger.renew(run) == "renewed"


def test_a_worker_that_comes_does_not_take_it_for_a_stranger_on_the_device(world, waiter):
    world.join()
    waiter().run()
    assert world.ledger.quarantine_device("node:0", "something else uses it", has_ended=True) == "busy"


def test_whose_heartbeat_ends_is_dead_and_never_runs_again(world, waiter):
    world.join()
    run = waiter().run()
    world.hold(ticket="next")
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert (world.state("program"), world.claim_of()["ticket"]) == ("ended", "next")
    assert world.ledger.renew(run) == "ended"
    assert world.ledger.release(run) == "ended"


def test_robbed_it_is_told_and_its_end_leaves_the_stranger_alone(world, waiter):
    world.join()
    run = waiter().run()
    world.delete_lease()
    assert world.ledger.renew(run) == "regained"
    world.delete_lease()
    world.stranger_takes()
    assert world.ledger.renew(run) == "robbed"
    assert world.ledger.release(run) == "released"
    assert world.lease() == "stranger"


def test_redis_forgets_all_and_it_keeps_its_gpu_to_its_end(world, waiter):
    worker = world.join()
    run = waiter().run()
    world.client.flushdb()
    worker.join()
    assert world.ledger.renew(run) == "flushed"
    world.hold(ticket="next")
    assert worker.claim().reason == "leased"
    world.ledger.release(run)
    assert worker.claim() == "next"


def test_redis_forgets_who_waits_and_it_finds_its_old_place(world, waiter, busy):
    first, second = waiter("first"), waiter("second")
    first.ask()
    second.ask()
    world.ledger.release(busy)
    world.client.flushdb()
    assert second.ask().word == first.ask().word == "waiting"  # and not: unserved
    world.join()
    world.listen("first")
    assert [one.ask().word for one in (second, first)] == ["waiting", "claimed"]


# at random


def run_machine(url, **options):
    """Hypothesis looks for a sequence of steps after which something does not hold."""
    machine = type("ProgramMachine", (ProgramMachine,), {"url": url})
    given = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, **options}
    run_state_machine_as_test(machine, settings=settings(**given))


def test_random_operations(redis_url):
    run_machine(redis_url, max_examples=30, stateful_step_count=30)


@pytest.mark.long
def test_many_random_operations(redis_url):
    run_machine(redis_url, max_examples=200, stateful_step_count=60)
