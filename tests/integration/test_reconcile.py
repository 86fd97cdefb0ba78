"""Each row breaks exactly this, and sees exactly this corrected; a dry run names it and changes nothing."""

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger import walk as walking
from celery_gpulease.ledger.checks import inconsistencies
from celery_gpulease.ledger.notifications import FLAGS, eviction_trouble, switch_on
from celery_gpulease.ledger.views import pool_rows
from celery_gpulease.model import Claim
from celery_gpulease.reconcile import corrections, gpus
from celery_gpulease.reconcile.corrections import reconcile
from celery_gpulease.reconcile.evidence import gather
from celery_gpulease.settings import Settings
from tests.integration.ledger.world import World

GPU = "node:0"
HOUR_MS = 3_600_000


@pytest.fixture
def ledger(redis_url):
    corrections._said.clear()
    ledger = Ledger(Settings(redis_url=redis_url, lease_ttl=30, heartbeat_interval=10))
    switch_on(ledger)
    yield ledger
    assert inconsistencies(ledger) == []
    ledger.client.close()


@pytest.fixture
def world(ledger):
    world = World(ledger)
    yield world
    world.close()


@pytest.fixture
def worker(world):
    """A living worker of one GPU, idle."""
    worker = world.join()
    worker.claim()
    return worker


@pytest.fixture
def run(world, worker):
    """A run on its GPU, which its worker reports."""
    world.hold(ticket="t", task_id="task")
    run = worker.run()
    worker.report(run)
    return run


def found(world, caplog, *kinds, again=()):
    """A dry run names exactly this and changes nothing, then it is corrected, and then there is nothing to correct."""
    before = world.everything()
    named = list(map(str, reconcile(world.ledger, "me", change=False)))
    assert world.everything() == before
    caplog.clear()
    done = reconcile(world.ledger, "me")
    assert sorted(one.kind for one in done) == sorted(kinds)
    assert sorted(map(str, done)) == sorted(named)
    corrected = [one for one in done if one.is_corrected]
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert logged == [f"{'Reconciled' if one.is_corrected else 'Left as it is:'} {one}" for one in done]
    assert noted(world)[-len(corrected) :] == [f"{one.kind}: {one.detail}" for one in corrected] or not corrected
    assert [one.kind for one in reconcile(world.ledger, "me")] == list(again)
    return done


def noted(world):
    """The details of what the journal says was corrected."""
    entries = [entry for _, entry in world.client.xrange(world.key("journal"))]
    corrected = [entry["detail"] for entry in entries if entry["what"] == "corrected"]
    assert world.count("corrected") == len(corrected)
    return corrected


# a GPU beside its worker's report


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_missed_event(world, worker, caplog, is_listed):
    world.client.delete("gpu:free:default")  # nobody finds the GPU
    world.hold()
    if is_listed:
        world.client.zadd("gpu:free:default", {GPU: 1})
    found(world, caplog, "missed event")
    assert worker.pop() is not None


def test_an_event_that_is_under_way_is_not_missed(world, worker):
    world.hold()
    run = worker.run()
    world.hold()
    world.ledger.release(run)
    assert reconcile(world.ledger, "me", change=False) == []


def subscribes(world):
    """A worker that starts, or is back after its connection was cut: it claims when it has heard the answer."""
    return world.join().claim


def subscribes_again(world):
    world.join().claim()
    world.deafen(GPU)
    return lambda: world.listen(GPU)


def gets_a_strangers_gpu_back(world):
    worker = world.join()
    world.stranger_takes()
    worker.claim()
    world.delete_lease()
    return worker.claim


def is_wanted_no_more(world):
    worker = world.join()
    world.want()
    worker.claim()
    world.unwant()
    return worker.claim


@pytest.mark.parametrize("does_one_wait", [False, True])
@pytest.mark.parametrize("what", [subscribes, subscribes_again, gets_a_strangers_gpu_back, is_wanted_no_more])
def test_what_is_under_way_is_no_mistake(world, what, does_one_wait):
    """Its worker does its part in the moment between the reconciler's two looks."""
    if does_one_wait:
        world.hold()
    does_its_part = what(world)
    done = []
    assert list(gpus.correct_gpus(world.ledger, change=True, wait=lambda: done.append(does_its_part()))) == []
    assert len(done) == (0 if does_one_wait and what is subscribes_again else 1)


def test_a_lapsed_lease(world, worker, caplog):
    world.hold(ticket="t")
    worker.run()
    world.drained()  # so that it is not claimed again at once
    world.lapse()
    found(world, caplog, "lapsed lease")
    assert (world.state("t"), world.ticket("t")["deliveries"]) == ("pending", "1")


def test_a_lapsed_lease_of_what_died_too_often(world, worker, caplog):
    world.hold(ticket="t")
    worker.run(limit=1)
    world.lapse()
    found(world, caplog, "lapsed lease")
    assert world.ticket("t")["why"] == "lease_lost"


def test_a_routed_ticket_that_was_not_started_in_time(world, worker, caplog):
    world.hold(ticket="t")
    world.lapse()
    found(world, caplog, "not started")
    assert (world.state("t"), world.ticket("t")["returns"]) == ("pending", "1")
    assert worker.claim().reason == "quarantine"


def test_a_job_without_its_lease(world, run, caplog):
    world.delete_lease()
    world.client.zadd("gpu:deadlines", {GPU: 1})
    found(world, caplog, "job without lease")
    assert world.lease() == run.token


def test_a_report_older_than_two_heartbeats_is_no_evidence_that_it_runs(world, run, caplog):
    world.client.hset(f"gpu:device:{GPU}", "reported_ms", 1)
    world.drained()
    world.lapse()
    found(world, caplog, "lapsed lease")


def began_long_ago(world, seconds=16):
    """Longer than a start may take."""
    world.client.hincrby(f"gpu:claim:{GPU}", "started_ms", -seconds * 1000)


def test_an_idle_holder(world, worker, run, caplog):
    began_long_ago(world)
    worker.report()
    world.drained()
    found(world, caplog, "idle holder")
    assert (world.state("t"), world.lease(), world.ticket("t")["deliveries"]) == ("pending", None, "1")


def test_an_idle_holder_whose_task_was_given_out_too_often_ends(world, worker, caplog):
    world.hold(ticket="t")
    worker.run(limit=1)
    began_long_ago(world)
    worker.report()
    found(world, caplog, "idle holder")
    assert world.ticket("t")["why"] == "lease_lost"


def test_an_idle_holder_that_goes_on_all_the_same_is_told_that_it_is_lost(world, worker, run, caplog):
    began_long_ago(world)
    worker.report()
    world.drained()
    found(world, caplog, "idle holder")
    assert world.ledger.renew(run) == "lost"


def test_what_its_worker_does_meanwhile_is_no_correction_of_ours(world, worker, run):
    """The reconciler has looked, and its order comes too late."""
    world.delete_lease()
    robbed = gather(world.ledger, GPU)
    assert gpus._job_without_lease(world.ledger, robbed, change=False)
    world.ledger.renew(run)
    assert gpus._job_without_lease(world.ledger, robbed, change=True) is None
    began_long_ago(world)
    worker.report()
    idle = gather(world.ledger, GPU)
    assert gpus._idle_holder(world.ledger, idle, change=False)
    world.ledger.release(run)
    assert gpus._idle_holder(world.ledger, idle, change=True) is None


def test_a_tail_that_its_worker_has_forgotten(world, worker, run, caplog):
    """Its worker was killed, and the next one was present before anybody looked."""
    world.ledger.give_back(run)
    began_long_ago(world)
    worker.report()
    world.drained()
    found(world, caplog, "idle holder")
    assert world.state("t") == "pending"


def test_a_tail_that_runs_is_left_in_peace(world, worker, run):
    world.ledger.give_back(run)
    began_long_ago(world)
    worker.report(run)
    assert reconcile(world.ledger, "me") == []


def test_a_report_from_before_start_says_nothing_of_the_run(world, worker):
    worker.report()
    world.hold(ticket="t")
    worker.run()
    assert reconcile(world.ledger, "me") == []


def test_a_report_from_within_the_time_of_a_start_says_nothing_of_the_run(world, worker):
    world.hold(ticket="t")
    worker.run()
    began_long_ago(world, seconds=14)
    worker.report()
    assert reconcile(world.ledger, "me") == []
    assert world.state("t") == "started"


def test_an_old_report_that_it_is_idle_is_unknown(world, worker, run):
    began_long_ago(world, seconds=60)
    worker.report()
    world.client.hincrby(f"gpu:device:{GPU}", "reported_ms", -21_000)
    assert reconcile(world.ledger, "me") == []


def test_an_idle_report_of_a_clock_that_was_stepped_back_since_is_unknown(world, worker, run):
    worker.report()
    world.client.hincrby(f"gpu:device:{GPU}", "reported_ms", 18_000)
    assert reconcile(world.ledger, "me") == []
    assert world.state(run.ticket) == "started"


def test_an_idle_report_of_a_worker_that_is_not_alive_is_unknown(world, worker, run):
    began_long_ago(world)
    worker.report()
    worker.die()
    assert reconcile(world.ledger, "me") == []


def test_a_worker_that_is_gone_for_longer_than_its_presence_is_offline(world, worker, caplog):
    assert world.free() == [GPU]
    worker.die()
    world.lapse_presence()
    found(world, caplog, "offline")
    assert world.free() == []


@pytest.mark.parametrize("is_listed", [True, False])
def test_an_index_out_of_step(world, worker, caplog, is_listed):
    if is_listed:
        world.client.hset(f"gpu:closed:{GPU}", "drain", 1)
    else:
        world.client.delete("gpu:free:default")
    found(world, caplog, "index out of step")
    assert (world.free() == []) == is_listed


# what only Redis knows


def lose_claim(world):
    world.client.delete(f"gpu:claim:{GPU}")


def lose_claim_and_lease(world):
    world.client.delete(f"gpu:claim:{GPU}", f"gpu:lease:{GPU}")
    world.client.zrem("gpu:deadlines", GPU)
    world.client.hset(f"gpu:device:{GPU}", "running", "")
    world.drained()


WAITING = {
    "in_no_line": lambda world: world.client.zrem("gpu:pending:default", "t"),
    "in_two_lines": lambda world: world.client.zadd("gpu:pending:other", {"t": 1}),
    "pinned_too": lambda world: world.client.zadd("gpu:pinned:node:9", {"t": 1}),
    "scheduled_too": lambda world: (
        world.client.zadd("gpu:scheduled", {"t": 1e15}),
        world.client.hincrby("gpu:scheduled_count", "default", 1),
    ),
    "ending_too": lambda world: world.client.zadd("gpu:ending", {"t": 1e15}),
    "among_the_pinned": lambda world: world.client.zadd("gpu:pinned_in:default", {"t": 1}),
    "not_in_expiring": lambda world: world.client.zrem("gpu:expiring", "t"),
    "expiring_at_another_time": lambda world: world.client.zadd("gpu:expiring", {"t": 1e15}),
    "at_another_place": lambda world: world.client.zadd("gpu:pending:default", {"t": 1}),
    "without_its_score": lambda world: world.client.hdel("gpu:ticket:t", "score"),
    "in_no_state": lambda world: world.client.hset("gpu:ticket:t", "state", "nowhere"),
    "without_a_state": lambda world: world.client.hdel("gpu:ticket:t", "state"),
    "with_a_token": lambda world: world.client.hset("gpu:ticket:t", "token", "x"),
    "unknown_to_its_task": lambda world: world.client.hdel("gpu:task:task", "t"),
    "known_to_another_task": lambda world: world.client.hset("gpu:task:other", "t", ""),
    "wrongly_counted": lambda world: world.client.hset("gpu:ticket:t", "deliveries", -1),
    "counted_by_a_word": lambda world: world.client.hset("gpu:ticket:t", "returns", "many"),
}


@pytest.mark.parametrize("wrong", WAITING.values(), ids=WAITING.keys())
def test_a_waiting_ticket_is_in_its_line_and_nowhere_else(world, caplog, wrong):
    world.hold(ticket="t", task_id="task", expires_ms=world.now_ms() + 3_600_000)
    world.hold(ticket="next")
    before = world.ticket("t")
    wrong(world)
    found(world, caplog, "ticket out of place")
    assert world.ticket("t") == before
    assert world.line() == ["t", "next"]


PINNED = {
    "in_its_pools_line": lambda world: (
        world.client.zrem("gpu:pinned:node:7", "t"),
        world.client.zadd("gpu:pending:default", {"t": 1}),
    ),
    "not_among_the_pinned_of_its_pool": lambda world: (
        world.client.delete("gpu:pinned_in:default"),
        world.client.zadd("gpu:pinned_in:other", {"t": 1}),
    ),
}


@pytest.mark.parametrize("wrong", PINNED.values(), ids=PINNED.keys())
def test_a_pinned_ticket_is_in_its_line(world, caplog, wrong):
    world.hold(ticket="t", pin="node:7")
    wrong(world)
    found(world, caplog, "ticket out of place", "ticket out of place")
    assert world.client.zrange("gpu:pinned:node:7", 0, -1) == ["t"]
    assert world.line() == []


@pytest.mark.parametrize("pin", ["", "node:7"])
def test_a_line_that_is_not_named(world, caplog, pin):
    world.hold(ticket="t", pin=pin)
    world.client.delete("gpu:lines")
    found(world, caplog, "ticket out of place")
    assert pool_rows(world.ledger, [])["default"].pending == 1


def test_a_line_in_which_nobody_waits_is_named_until_the_next_reconciliation(world, worker):
    for pin in ("", GPU, "node:7"):
        world.hold(pin=pin)
    world.hold(ticket="t", pin="node:7")
    for _ in range(2):
        world.ledger.release(worker.run())
    named = {"pending:default", f"pinned:{GPU}", "pinned:node:7", "pinned_in:default"}
    assert reconcile(world.ledger, "me", change=False) == []
    assert world.client.smembers("gpu:lines") == named
    assert reconcile(world.ledger, "me") == []
    assert world.client.smembers("gpu:lines") == {"pinned:node:7", "pinned_in:default"}


def test_a_last_arrival_that_is_lost(world, caplog):
    world.hold(ticket="t")
    world.client.delete("gpu:arrival")
    found(world, caplog, "ticket out of place")
    following = world.hold()
    assert world.line() == ["t", following]


SCHEDULED = {
    "in_no_schedule": (lambda world: world.client.zrem("gpu:scheduled", "t"), ["index out of step"]),
    "in_a_line_too": (lambda world: world.client.zadd("gpu:pending:default", {"t": 1}), []),
    "among_the_pinned_too": (lambda world: world.client.zadd("gpu:pinned_in:default", {"t": 1}), []),
    "not_in_expiring": (lambda world: world.client.zrem("gpu:expiring", "t"), []),
}


@pytest.mark.parametrize(("wrong", "more"), SCHEDULED.values(), ids=SCHEDULED.keys())
def test_a_scheduled_ticket_is_in_the_schedule_and_nowhere_else(world, caplog, wrong, more):
    far = world.now_ms() + 3_600_000
    world.hold(ticket="t", eta_ms=far, expires_ms=far + 1000)
    wrong(world)
    found(world, caplog, "ticket out of place", *more)
    assert world.client.zscore("gpu:scheduled", "t") == far


@pytest.mark.parametrize("count", [0, 7])
def test_a_count_of_the_scheduled_that_is_wrong(world, caplog, count):
    world.hold(eta_ms=world.now_ms() + 3_600_000)
    world.client.hset("gpu:scheduled_count", "default", count)
    found(world, caplog, "index out of step")
    assert world.client.hgetall("gpu:scheduled_count") == {"default": "1"}


@pytest.fixture
def ending(world, worker):
    world.hold(ticket="t")
    worker.run(acks_late=False)
    world.drained()
    world.lapse()
    world.ledger.reap(GPU)
    assert world.state("t") == "ending"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda world: world.client.zrem("gpu:ending", "t"),
        lambda world: world.client.zadd("gpu:pending:default", {"t": 1}),
        lambda world: world.client.zadd("gpu:expiring", {"t": 1e15}),
    ],
)
def test_an_end_that_nobody_would_write(world, worker, ending, caplog, wrong):
    wrong(world)
    found(world, caplog, "ticket out of place")
    assert world.ledger.end().ticket == "t"


@pytest.mark.parametrize("place", ["pending:default", "pinned_in:default", "scheduled", "expiring", "ending"])
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_ticket_that_does_not_exist_stands_nowhere(world, worker, caplog, place, has_ended):
    if has_ended:
        world.hold(ticket="t")
        world.ledger.release(worker.run())
    world.drained()
    world.client.zadd(f"gpu:{place}", {"t": 1e15})
    found(world, caplog, "ticket out of place")
    assert world.client.exists(f"gpu:{place}") == 0


def test_a_task_whose_ticket_does_not_exist(world, caplog):
    world.client.hset("gpu:task:task", "t", "")
    found(world, caplog, "ticket out of place")
    assert world.client.exists("gpu:task:task") == 0


@pytest.mark.parametrize("kind", ["message", "returned"])
def test_what_is_left_of_no_ticket(world, caplog, kind):
    world.client.set("gpu:message:t", "x") if kind == "message" else world.client.sadd("gpu:returned:t", GPU)
    found(world, caplog, "ticket out of place")


def test_a_ticket_that_has_ended_and_is_still_there(world, caplog):
    world.hold(ticket="t")
    world.client.zadd("gpu:ended", {"t": world.now_ms()})
    found(world, caplog, "ticket out of place")
    assert (world.ticket("t"), world.line()) == ({}, [])


@pytest.mark.parametrize("part", ["message", "task_id", "task"])
def test_a_ticket_that_nobody_can_end_is_forgotten_and_hinders_nobody(world, part):
    world.hold(ticket="t", task_id="task")
    following = world.hold()
    if part == "message":
        world.lose_message("t")
    else:
        world.client.hdel("gpu:ticket:t", part)
    assert {one.ticket for one in reconcile(world.ledger, "me")} == {"t"}
    assert world.state("t") == "ended"
    assert world.journal().count("vanished") == 1
    assert world.line() == [following]
    assert reconcile(world.ledger, "me") == []


@pytest.mark.parametrize("part", ["pool", "pin", "priority", "expires_ms"])
def test_a_ticket_that_nobody_can_run_gets_its_end(world, part):
    world.hold(ticket="t", task_id="task")
    following = world.hold()
    world.client.hdel("gpu:ticket:t", part)
    assert {one.ticket for one in reconcile(world.ledger, "me")} == {"t"}
    reconcile(world.ledger, "me")  # where its pool is gone, its line is known only from the line
    assert reconcile(world.ledger, "me") == []
    assert world.line() == [following]
    ending = world.ledger.end()
    assert (ending.ticket, ending.task_id, ending.why) == ("t", "task", "damaged")
    assert world.ledger.finish("t") == "ended"


def test_a_run_whose_claim_is_gone_gets_it_back(world, run, caplog):
    before = world.claim_of()
    lose_claim(world)
    found(world, caplog, "ticket out of place")
    after = world.claim_of()
    assert {name: after[name] for name in ("ticket", "token", "fence", "state", "delivery")} == {
        name: before[name] for name in ("ticket", "token", "fence", "state", "delivery")
    }
    assert world.ledger.release(run) == "released"


def test_a_run_whose_claim_and_lease_are_gone_and_that_is_reported_runs_on(world, run, caplog):
    world.client.delete(f"gpu:claim:{GPU}", f"gpu:lease:{GPU}")
    world.client.zrem("gpu:deadlines", GPU)
    done = reconcile(world.ledger, "me")
    assert [one.kind for one in done] == ["ticket out of place", "job without lease"]
    assert (world.state("t"), world.lease()) == ("started", run.token)


def test_a_run_that_no_claim_no_lease_and_no_report_names_goes_back(world, run, caplog):
    lose_claim_and_lease(world)
    found(world, caplog, "ticket out of place")
    assert (world.state("t"), world.ticket("t")["deliveries"]) == ("pending", "1")


def test_a_claim_that_is_gone_goes_back_uncounted(world, worker, caplog):
    world.hold(ticket="t")
    lose_claim_and_lease(world)
    found(world, caplog, "ticket out of place")
    assert (world.state("t"), world.ticket("t")["deliveries"]) == ("pending", "0")
    assert worker.start(worker.pop()) == "stale"


def test_a_run_that_stands_in_a_line_too_is_not_given_out_twice(world, run, caplog):
    world.client.zadd("gpu:pending:default", {"t": 1})
    world.client.zadd("gpu:pinned_in:default", {"t": 1})
    found(world, caplog, "ticket out of place", "ticket out of place")
    assert (world.state("t"), world.line()) == ("started", [])


def test_a_claim_in_another_state_than_its_ticket(world, run, caplog):
    world.client.hset(f"gpu:claim:{GPU}", "state", "claimed")
    found(world, caplog, "ticket out of place")
    assert world.claim_of()["state"] == "started"


def test_a_claim_for_a_ticket_that_is_elsewhere(world, worker, caplog):
    world.drained()
    world.hold(ticket="t")
    token = f"{'a' * 32}-{GPU}-1"
    world.client.hset(f"gpu:claim:{GPU}", mapping={"ticket": "t", "token": token, "fence": 1, "state": "started"})
    world.client.set(f"gpu:fence:{GPU}", 1)
    world.client.set(f"gpu:lease:{GPU}", token, px=30_000)
    world.client.zadd("gpu:deadlines", {GPU: world.now_ms() + 30_000})
    found(world, caplog, "GPU out of step")
    assert (world.claim_of(), world.lease(), world.state("t")) == ({}, None, "pending")


RUNNING = {
    "lease_without_ttl": lambda world: world.client.persist(f"gpu:lease:{GPU}"),
    "no_deadline": lambda world: world.client.zrem("gpu:deadlines", GPU),
    "another_deadline": lambda world: world.client.zadd("gpu:deadlines", {GPU: 1}),
    "fence_behind": lambda world: world.client.set(f"gpu:fence:{GPU}", 1),
    "presence_without_ttl": lambda world: world.client.persist(f"gpu:worker:{GPU}"),
    "presence_of_an_hour": lambda world: world.client.pexpire(f"gpu:worker:{GPU}", HOUR_MS),
    "registry": lambda world: world.client.zadd("gpu:gpus", {GPU: 1}),
    "heartbeats": lambda world: world.client.zrem("gpu:heartbeats", GPU),
}


@pytest.mark.parametrize("wrong", RUNNING.values(), ids=RUNNING.keys())
def test_the_keys_of_a_gpu_agree(world, run, caplog, wrong):
    wrong(world)
    found(world, caplog, "GPU out of step")
    assert world.ledger.renew(run) == "renewed"
    assert 29_000 < world.lease_ms() <= 30_000


def test_a_gpu_that_is_missing_in_the_registry(world, run, caplog):
    world.client.zrem("gpu:gpus", GPU)
    found(world, caplog, "GPU out of step")
    assert world.client.zscore("gpu:gpus", GPU) == 30_000


def test_a_tail_whose_lease_came_back(world, run, caplog):
    world.ledger.give_back(run)
    world.client.set(f"gpu:lease:{GPU}", run.token, px=30_000)
    found(world, caplog, "GPU out of step")
    assert world.lease() is None


def test_a_tail_without_a_deadline(world, run, caplog):
    world.ledger.give_back(run)
    world.client.zrem("gpu:deadlines", GPU)
    found(world, caplog, "GPU out of step")
    assert world.ledger.renew(run) == "tail"


# the server's clock was stepped back by an hour


def test_a_lease_lasts_for_no_hour(world, run, caplog):
    world.client.pexpire(f"gpu:lease:{GPU}", HOUR_MS)
    world.client.zadd("gpu:deadlines", {GPU: world.now_ms() + HOUR_MS})
    found(world, caplog, "GPU out of step")
    assert 29_000 < world.lease_ms() <= 30_000


def test_a_tail_is_not_believed_for_an_hour(world, run, caplog):
    world.ledger.give_back(run)
    world.client.zadd("gpu:deadlines", {GPU: world.now_ms() + HOUR_MS})
    found(world, caplog, "GPU out of step")
    assert world.client.zscore("gpu:deadlines", GPU) <= world.now_ms() + 30_000


def test_an_end_waits_for_no_hour(world, run, caplog):
    world.ledger.requeue(run, "died", counted=True)
    world.ledger.cancel("task")
    world.client.zadd("gpu:ending", {"t": world.now_ms() + HOUR_MS})
    found(world, caplog, "ticket out of place")
    assert world.ledger.end().ticket == "t"


def test_a_lease_of_ours_without_a_ttl_and_without_a_claim_gets_one(world, worker, caplog):
    """FLUSHDB under a run, and somebody's PERSIST."""
    world.client.set(f"gpu:lease:{GPU}", f"{'a' * 32}-{GPU}-1")
    found(world, caplog, "GPU out of step")
    assert 0 < world.lease_ms() <= 30_000
    world.delete_lease()


def test_a_deadline_of_nothing(world, worker, caplog):
    world.client.zadd("gpu:deadlines", {GPU: 1e15, "node:9": 1e15})
    found(world, caplog, "GPU out of step", "GPU out of step")


def test_a_gpu_that_nobody_registered(world, worker, caplog):
    world.client.zadd("gpu:gpus", {"node:9": 1000})
    world.client.zadd("gpu:heartbeats", {"node:9": 1000})
    world.client.hset("gpu:names", "node:9", "node:9")
    found(world, caplog, *["GPU out of step"] * 3)


def test_a_gpu_in_the_index_of_a_pool_that_it_does_not_serve(world, worker, caplog):
    world.client.zadd("gpu:free:other", {GPU: 1})
    found(world, caplog, "GPU out of step")
    assert world.free("other") == []


def test_a_strangers_lease_without_a_ttl_is_said_every_time_and_left(world, worker, caplog):
    world.client.set(f"gpu:lease:{GPU}", "a notebook")
    (one,) = found(world, caplog, "lease without TTL", again=["lease without TTL"])
    assert "'a notebook' holds it for ever" in str(one)
    assert world.lease() == "a notebook"
    assert noted(world) == []


def test_a_strangers_wish_without_a_ttl_is_said_every_time_and_left(world, worker, caplog):
    world.client.set(f"gpu:want:{GPU}", "a notebook")
    (one,) = found(world, caplog, "wish without TTL", again=["wish without TTL"])
    assert f"delete gpu:want:{GPU}" in str(one)
    assert world.client.get(f"gpu:want:{GPU}") == "a notebook"


# the server


def test_flags_that_are_gone_are_switched_on_again(world, worker, caplog):
    world.client.config_set(FLAGS, "El")
    found(world, caplog, "flags")
    assert set(world.client.config_get(FLAGS)[FLAGS]) == set("ElKgxe")


def test_before_the_first_worker_of_a_gpu_nobody_needs_the_flags(own_server):
    ledger = Ledger(Settings(redis_url=own_server.url))
    assert reconcile(ledger, "a beat that was started first") == []
    ledger.client.close()


def test_off_leaves_the_flags_alone(redis_url):
    ledger = Ledger(Settings(redis_url=redis_url, notifications="off"))
    assert reconcile(ledger, "me") == []
    assert ledger.client.config_get(FLAGS)[FLAGS] == ""


@pytest.fixture
def refusing(server_binary):
    with EmbeddedServer("--rename-command", "CONFIG", "", binary=server_binary) as server:
        yield server.url


@pytest.mark.parametrize("mode", ["auto", "require"])
def test_a_server_that_refuses_flags_is_named_and_in_the_log_once(refusing, caplog, mode):
    corrections._said.clear()
    ledger = Ledger(Settings(redis_url=refusing, notifications=mode))
    for change in (False, True, True):
        (one,) = reconcile(ledger, "me", change=change)
        assert (one.kind, one.is_corrected) == ("flags", False)
        assert FLAGS in str(one)
    assert len([record for record in caplog.records if "Left as it is" in record.getMessage()]) == 1


def test_what_its_worker_has_said_of_the_server_is_not_said_again_until_it_comes_back(own_server, caplog):
    ledger = Ledger(Settings(redis_url=own_server.url))
    switch_on(ledger)
    corrections._said.clear()
    ledger.client.config_set("maxmemory-policy", "allkeys-lru")
    corrections.has_said(eviction_trouble(ledger))
    for policy in ("allkeys-lru", "noeviction", "allkeys-lru"):
        ledger.client.config_set("maxmemory-policy", policy)
        reconcile(ledger, "me")
    assert len([record for record in caplog.records if "Left as it is" in record.getMessage()]) == 1


def test_a_server_that_evicts_is_named(own_server, caplog):
    ledger = Ledger(Settings(redis_url=own_server.url))
    switch_on(ledger)
    ledger.client.config_set("maxmemory-policy", "allkeys-lru")
    (one,) = reconcile(ledger, "me")
    assert (one.kind, one.is_corrected) == ("eviction policy", False)


def test_scripts_that_are_gone_hinder_nothing(world, worker, run, caplog):
    world.delete_lease()
    world.client.zadd("gpu:deadlines", {GPU: 1})
    world.client.script_flush()
    assert [one.kind for one in reconcile(world.ledger, "me")] == ["job without lease"]
    world.client.script_flush()
    assert world.ledger.release(run) == "released"


# how it goes about it


def test_nothing_wrong_is_nothing_corrected(world, worker):
    far = world.now_ms() + 3_600_000
    world.hold()
    world.hold(expires_ms=far)
    world.hold(eta_ms=far, expires_ms=far)
    world.hold(pin="node:7")
    worker.report(worker.run())
    before = world.everything()
    assert reconcile(world.ledger, "me", change=False) == []
    assert world.everything() == before
    assert reconcile(world.ledger, "me") == []


def test_one_gpu_that_cannot_be_looked_at_does_not_hide_the_others(world, worker, caplog):
    world.join("node:1").claim()
    world.hold(ticket="t", pin="node:1")
    world.lapse("node:1")
    world.client.set(f"gpu:claim:{GPU}", "not a hash")
    for change in (False, True):
        done = reconcile(world.ledger, "me", change=change)
        assert {one.kind for one in done} == {"trouble", "not started"}
    assert any(record.exc_info for record in caplog.records)
    world.client.delete(f"gpu:claim:{GPU}")


def test_one_ticket_that_cannot_be_looked_at_does_not_hide_the_others(world, caplog):
    world.client.set("gpu:ticket:bad", "not a hash")
    world.client.set("gpu:scheduled", "not a zset")
    world.hold(ticket="t")
    world.client.zrem("gpu:pending:default", "t")
    with pytest.raises(redis.ResponseError):
        world.ledger.correct_ticket("bad", "", change=True)
    world.client.delete("gpu:scheduled")
    done = reconcile(world.ledger, "me")
    assert {one.kind for one in done} == {"trouble", "ticket out of place"}
    assert world.client.zscore("gpu:pending:default", "t") is not None
    world.client.delete("gpu:ticket:bad")


def test_a_line_that_cannot_be_read_is_named(world, caplog):
    world.client.set("gpu:pinned:x:1", "not a zset")
    (one,) = reconcile(world.ledger, "me")
    assert (one.kind, one.is_corrected) == ("unreadable key", False)
    world.client.delete("gpu:pinned:x:1")


@pytest.mark.parametrize("place", ["pending:default", "task:task", "scheduled", ""])
def test_what_ended_between_a_look_and_the_script_is_not_wrong(world, place):
    """A page was read, and then everything went its way."""
    assert world.ledger.correct_ticket("t", place, change=True) == ["", ""]
    assert world.ledger.correct_gpu(GPU, "free:default", change=True) == []
    assert world.ledger.correct_gpu(GPU, "names:x", change=True) == []
    assert world.journal() == []


def test_of_thousands_of_a_kind_the_log_tells_some_and_counts_the_others(world, caplog):
    number = corrections.MOST_SAID + 5
    for one in range(number):
        world.client.zadd("gpu:pending:default", {f"nobody-{one}": one})
    assert len(reconcile(world.ledger, "me")) == number
    assert len(caplog.messages) == corrections.MOST_SAID + 1
    assert caplog.messages[-1] == "ticket out of place: 5 more, which the journal has"
    assert len(noted(world)) == number


def test_what_is_under_way_is_never_corrected(world):
    """Reconciliations beside workers and senders that are as fast as they can be."""
    workers = [world.join(f"node:{number}") for number in range(2)]
    for worker in workers:
        worker.claim()
    is_over = threading.Event()

    def work(worker):
        ledger = Ledger(world.ledger.settings)
        while not is_over.is_set():
            if ledger.client.zcard("gpu:pending:default") < 5:
                ledger.hold(world.held())
                ledger.hold(world.held(eta_ms=world.now_ms() + 5, expires_ms=world.now_ms() + 3_600_000))
            ledger.promote()
            ledger.claim(worker.gpu)
            while message := ledger.client.rpop(ledger.route_to(worker.gpu)):
                claim = Claim.from_header(json.loads(message)["gpulease"])
                assert (
                    ledger.start(claim, "n", worker.presence.instance, acks_late=True, limit=3, stores_result=False)
                    == "run"
                )
                ledger.report(worker.gpu, worker.presence, claim, 15)
                assert ledger.release(claim) == "released"
        ledger.client.close()

    with ThreadPoolExecutor() as pool:
        working = [pool.submit(work, worker) for worker in workers]
        try:
            done = [one for _ in range(15) for one in reconcile(world.ledger, "me")]
        finally:
            is_over.set()
        for one in working:
            one.result()
    assert done == []


def test_where_the_last_walk_stopped_may_be_nonsense(world):
    world.client.hset("gpu:pulse", "walk", "[1]")
    assert reconcile(world.ledger, "me", budget=10) == []


def test_a_reconciliation_looks_at_a_part_and_the_next_one_goes_on(world, monkeypatch):
    monkeypatch.setattr(walking, "PAGE", 10)
    tickets = [world.hold() for _ in range(200)]  # more than Redis gives at once, however small the page
    for ticket in tickets:
        world.client.hdel("gpu:task:" + world.ticket(ticket)["task_id"], ticket)
    numbers = [len(reconcile(world.ledger, "me", budget=100)) for _ in range(18)]
    assert sum(numbers) == 200
    assert max(numbers) < 150


def test_one_at_a_time_and_not_sooner_than_wanted(ledger):
    assert ledger.take_turn("me")
    assert reconcile(ledger, "other") is None
    ledger.end_turn("other")
    assert reconcile(ledger, "other") is None
    ledger.end_turn("me")
    assert reconcile(ledger, "other", age=60) is None
    assert reconcile(ledger, "other") == []
