"""What the exporter sees: states as they are, and from the journal how long it took and how often it was so."""

import pytest

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.ledger import Ledger
from celery_gpulease.operate import following, measures
from celery_gpulease.operate.watching import Watch
from celery_gpulease.settings import Settings
from celery_gpulease.tally import Distribution
from tests.integration.ledger.world import World
from tests.waiting import wait_until


@pytest.fixture
def ledger(redis_url):
    made = Ledger(Settings(redis_url=redis_url))
    yield made
    made.client.close()


@pytest.fixture
def world(ledger):
    made = World(ledger)
    yield made
    made.close()


@pytest.fixture
def watch(ledger):
    """An exporter's eye that has looked once."""
    made = Watch(ledger)
    made.turn()
    return made


def serving(world, *named):
    """A worker whose GPU is free, or has what waited for it."""
    worker = world.join(*named)
    worker.claim()
    return worker


def seen(watch, measure):
    """The values of a measure after another look; of a distribution, how many it has."""
    watch.turn()
    found = dict(watch.readings()).get(measure, {})
    return {key: sum(one.counts) if isinstance(one, Distribution) else one for key, one in found.items()}


def met(watch, measure):
    """Those that are not 0."""
    return {key[0]: value for key, value in seen(watch, measure).items() if value}


def test_gpus_pools_and_totals_are_told_as_they_are(world, watch):
    serving(world, "node:0", ("a100", "default"))
    serving(world, "GPU-4a", ("default",))
    world.hold(pool="a100")
    world.hold(pool="lonely")
    world.hold(pool="lonely", eta_ms=world.now_ms() + 60_000)
    states = {key: value for key, value in seen(watch, measures.GPU_STATE).items() if value}
    assert states == {("node:0", "", "leased"): 1.0, ("GPU-4a", "GPU-4a", "free"): 1.0}
    assert seen(watch, measures.GPU_INFO) == {
        ("node:0", "", "node", "0", "a100,default"): 1.0,
        ("GPU-4a", "GPU-4a", "node", "3", "default"): 1.0,
    }
    assert met(watch, measures.PENDING) == {"lonely": 1.0}
    assert met(watch, measures.SCHEDULED) == {"lonely": 1.0}
    assert set(met(watch, measures.OLDEST)) == {"lonely"}
    by_pool = {key: value for key, value in seen(watch, measures.POOL_GPUS).items() if value}
    assert by_pool == {("a100", "leased"): 1.0, ("default", "leased"): 1.0, ("default", "free"): 1.0}
    assert 0 < seen(watch, measures.LEASE_TTL)["node:0",] <= 30
    assert met(watch, measures.EVENT) == {"held": 2.0, "claimed": 1.0, "scheduled": 1.0}
    assert seen(watch, measures.EVENT)["robbed",] == 0.0
    assert seen(watch, measures.LOST) == {("forced",): 0.0, ("reaped",): 0.0, ("robbed",): 0.0}


def test_a_stranger_that_never_ends_is_told_by_its_ttl(world, watch):
    serving(world)
    world.client.set(world.ledger.keys.lease("node:0"), "stranger")
    assert seen(watch, measures.LEASE_TTL) == {("node:0",): -1.0}


def test_a_strangers_time_is_not_told_as_that_of_a_task_which_gave_its_gpu_back(world, watch):
    worker = serving(world)
    world.hold()
    claim = worker.run()
    assert set(seen(watch, measures.GPU_HELD)) == {("node:0",)}
    world.ledger.give_back(claim)
    world.stranger_takes()
    worker.claim()
    assert seen(watch, measures.GPU_HELD) == {}


def test_waiting_holding_and_the_gap_between_two_jobs_are_measured_by_pool(world, watch):
    worker = serving(world, "node:0", ("a100", "default"))
    world.hold()  # claimed by its sender's call
    world.hold(pool="a100")
    first = worker.run()
    assert (met(watch, measures.WAITING), met(watch, measures.HOLDING)) == ({"default": 1}, {})
    world.ledger.release(first)  # handed over
    world.ledger.release(worker.run())
    assert met(watch, measures.WAITING) == {"default": 1, "a100": 1}
    assert met(watch, measures.HOLDING) == {"default": 1, "a100": 1}
    assert met(watch, measures.GAP) == {"a100": 1}
    assert met(watch, measures.CLAIMS) == {"send": 1.0, "hand_over": 1.0}
    assert met(watch, measures.RELEASES) == {"ended": 2.0}


def test_no_gap_is_measured_where_nobody_waited_or_the_gpu_took_no_work(world, watch):
    worker = serving(world)
    world.hold()
    world.ledger.release(worker.run())
    world.hold()
    second = worker.run()
    assert met(watch, measures.GAP) == {}
    world.hold()
    world.drained()
    world.ledger.release(second)
    watch.turn()
    world.ledger.drain("node:0", drained=False)
    worker.run()
    assert met(watch, measures.GAP) == {}


def test_the_past_is_learnt_from_and_not_counted(world, ledger):
    worker = serving(world)
    world.hold()
    world.ledger.release(worker.run())
    world.hold()
    running, waiting = worker.run(), world.hold()
    watch = Watch(ledger)
    assert (met(watch, measures.WAITING), met(watch, measures.RELEASES)) == ({}, {})
    world.ledger.release(running)
    assert waiting == worker.run().ticket
    assert met(watch, measures.HOLDING) == {"default": 1}
    assert met(watch, measures.WAITING) == {"default": 1}
    assert met(watch, measures.GAP) == {"default": 1}


def test_where_the_journal_was_trimmed_the_ticket_itself_tells_since_when_it_waits(world, ledger):
    worker = serving(world)
    world.hold()
    running = worker.run()
    world.hold()
    world.client.xtrim(world.key("journal"), maxlen=0, approximate=False)
    watch = Watch(ledger)
    watch.turn()
    world.ledger.release(running)  # of which nothing is known: it is left out
    world.ledger.release(worker.run())
    assert met(watch, measures.WAITING) == {}  # it has ended before anybody looked
    world.hold()
    world.hold()
    world.client.xtrim(world.key("journal"), maxlen=0, approximate=False)
    world.ledger.release(worker.run())
    worker.run()
    assert met(watch, measures.WAITING) == {"default": 1}
    assert met(watch, measures.RELEASES) == {"ended": 3.0}


def test_what_is_remembered_is_bounded_and_what_was_forgotten_is_asked_for(world, watch, monkeypatch):
    monkeypatch.setattr(following, "MOST_TICKETS", 2)
    worker = serving(world)
    for _ in range(5):
        world.hold()
    watch.turn()
    assert len(watch._story._tasks) <= 2
    worker.run()
    assert met(watch, measures.WAITING) == {"default": 1}


def test_each_way_in_which_a_lease_ends_counts_once_by_its_reason(world, watch):
    worker = serving(world)
    world.hold()
    early = worker.run()
    world.ledger.give_back(early)
    world.ledger.release(early)
    world.hold()
    world.ledger.requeue(worker.run(), "its process died: signal 9, job 17", counted=True)
    world.ledger.force("node:0")  # it was claimed again
    forced = worker.run()
    world.ledger.force("node:0")
    world.ledger.release(forced)
    world.hold()
    world.ledger.defer(worker.pop(), 0.001)
    assert met(watch, measures.RELEASES) == {"early": 1.0, "its process died": 1.0, "forced": 2.0, "rate limit": 1.0}
    assert met(watch, measures.REDELIVERIES) == {"its process died": 1.0, "forced": 1.0}
    assert met(watch, measures.LOST) == {"forced": 2.0}
    assert met(watch, measures.HOLDING) == {"default": 5}


def test_a_dead_workers_lease_ends_as_reaped_and_in_the_end_as_lost(world, watch):
    world.hold()
    for number in range(3):
        worker = serving(world, f"node:{number}")
        worker.run()
        worker.die()
        world.lapse(f"node:{number}")
        world.end_grace()
        assert world.ledger.reap(f"node:{number}") == "reaped"
        for ticket in world.client.zrange(world.key("scheduled"), 0, -1):
            world.end_delay(ticket)
    assert met(watch, measures.RELEASES) == {"reaped": 2.0, "lease_lost": 1.0}
    assert met(watch, measures.LOST) == {"reaped": 3.0}


def test_a_message_that_is_not_run_is_counted_and_said_why(world, watch):
    worker = serving(world)
    world.hold()
    claim = worker.run()
    assert worker.start(claim, "another") == "twice"
    world.ledger.release(claim)
    assert worker.start(claim) == "stale"
    world.client.delete(world.key("ended"))
    assert worker.start(claim) == "unknown"
    assert met(watch, measures.DUPLICATES) == {"twice": 1.0, "stale": 1.0, "unknown": 1.0}
    assert met(watch, measures.EVENT)["dropped"] == 3.0


def test_corrections_are_counted_by_kind(world, watch):
    world.ledger.corrected("", "node:0", "missed event: free, and somebody waits")
    assert met(watch, measures.CORRECTIONS) == {"missed event": 1.0}


def test_a_gpu_is_idle_while_somebody_waits_only_where_it_serves_who_waits(world, watch):
    serving(world)
    world.hold(pool="a100")
    world.hold(pin="node:9")
    seen(watch, measures.IDLE)
    assert seen(watch, measures.IDLE) == {("node:0",): 0.0}
    world.stranger_takes()
    world.hold()
    seen(watch, measures.IDLE)
    assert seen(watch, measures.IDLE) == {("node:0",): 0.0}
    world.delete_lease()  # and nobody notices
    wait_until(lambda: seen(watch, measures.IDLE)["node:0",] > 0, 5, "idle seconds")
    world.ledger.claim("node:0")
    before = seen(watch, measures.IDLE)
    assert seen(watch, measures.IDLE) == before


def test_while_redis_is_away_only_that_is_told_and_what_was_counted(own_server):
    ledger = Ledger(Settings(redis_url=own_server.url))
    watch = Watch(ledger)
    assert seen(watch, measures.UP) == {(): 1.0}
    own_server.stop()
    with pytest.raises(LedgerUnavailable):
        watch.turn()
    told = dict(watch.readings())
    assert told[measures.UP] == {(): 0.0}
    assert measures.RELEASES in told
    assert not {measures.GPU_STATE, measures.PENDING, measures.EVENT} & told.keys()
    own_server.restart()
    assert seen(watch, measures.UP) == {(): 1.0}
    ledger.client.close()


def test_what_a_stranger_writes_into_the_journal_stops_nobody(world, watch):
    world.client.xadd(world.key("journal"), {"hello": "world"})
    world.client.xadd(world.key("journal"), {"what": "released"})
    world.ledger.corrected("", "", "missed event: free, and somebody waits")
    assert met(watch, measures.CORRECTIONS) == {"missed event": 1.0}


def test_a_journal_that_begins_anew_is_followed_on(world, watch):
    world.client.xadd("gpu:journal", {"what": "hello"}, id="9999999999999999999-0")
    world.ledger.corrected("", "", "missed event: free, and somebody waits")
    assert met(watch, measures.CORRECTIONS) == {"missed event": 1.0}
    world.client.delete("gpu:journal")
    world.ledger.corrected("", "", "missed event: free, and somebody waits")
    assert met(watch, measures.CORRECTIONS) == {"missed event": 2.0}


def test_a_word_that_is_none_of_ours_is_no_label(world, watch):
    for number in range(3):
        world.ledger.corrected("", "", f"whatever {number}")
        world.client.xadd("gpu:journal", {"what": "requeued", "detail": f"because {number}"})
        world.client.xadd("gpu:journal", {"what": "dropped", "detail": f"because {number}"})
        world.client.hincrby("gpu:counters", f"whatever {number}", 1)
    world.client.hset("gpu:counters", "nonsense", "x")
    told = {measure: met(watch, measure) for measure in (measures.CORRECTIONS, measures.REDELIVERIES)}
    assert told == {measures.CORRECTIONS: {"other": 3.0}, measures.REDELIVERIES: {"other": 3.0}}
    assert met(watch, measures.DUPLICATES) == {"other": 3.0}
    assert met(watch, measures.EVENT)["other"] == 3.0
