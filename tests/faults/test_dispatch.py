"""A free GPU is found at once, by whatever way it became free, and whatever was missed."""

import json

import pytest
from celery import Celery

from celery_gpulease import GPULease
from tests.faults.conftest import world_on
from tests.faults.world import HOST, SOON, now
from tests.waiting import wait_until

SLOW = {"gpulease_lease_ttl": 60.0, "gpulease_heartbeat_interval": 20.0, "gpulease_reconcile_interval": 60.0}


@pytest.fixture
def slow_world(redis_url, tmp_path, monkeypatch):
    """A world whose heartbeat is far too slow to be what notices."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(redis_url, tmp_path, **SLOW) as world:
        yield world
        world.rest()


def test_a_strangers_del_and_the_end_of_its_ttl_start_who_waits(slow_world):
    world = slow_world
    world.worker(0)
    world.take(0)
    first = world.send("add", 1, 2)
    world.give(0)
    world.started(first, seconds=10)
    world.succeeds(first)
    world.take(0, seconds=0.5)
    world.succeeds(world.send("add", 3, 4), seconds=10)


def test_what_a_sender_with_another_broker_claims_goes_the_workers_road(slow_world):
    """As one that spells the same server otherwise, and so takes broker and ledger for two."""
    world = slow_world
    world.worker(0)
    sender = Celery("sender", broker="memory://", backend=world.url)
    sender.conf.gpulease_redis_url = world.url
    assert not GPULease(sender).ledger.is_broker
    for number in range(3):
        assert sender.send_task("proj.add", (number, 1), pool="default").get(timeout=SOON) == number + 1
    sender.close()


def test_a_due_time_that_is_nearer_than_all_others_wakes_a_listener(slow_world):
    world = slow_world
    world.worker(0)
    late = world.send("add", 1, 2, countdown=3)
    before = now()
    soon = world.send("add", 3, 4, countdown=1)
    assert before + 1 <= world.started(soon, seconds=10).start
    world.succeeds(soon, late, seconds=15)


def test_the_flags_are_set_again_after_a_restart_of_redis(own_server, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(own_server.url, tmp_path) as world:
        world.worker(0)
        own_server.restart()
        flags = "notify-keyspace-events"
        wait_until(lambda: {"K", "x"} <= set(world.client.config_get(flags)[flags]), SOON, "the flags")
        world.succeeds(world.send("add", 1, 2))


def test_without_events_a_free_gpu_is_found_at_the_heartbeats_pace(own_server, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(own_server.url, tmp_path, gpulease_notifications="off") as world:
        worker = world.worker(0)
        world.take(0)
        task = world.send("add", 1, 2)
        world.give(0)
        world.succeeds(task)
        assert "notify-keyspace-events" not in worker.log
        assert world.client.config_get("notify-keyspace-events")["notify-keyspace-events"] == ""
        world.rest()


def test_tasks_sent_before_any_worker_run_in_order_when_one_comes(world):
    tasks = [world.send("add", n, n, priority=priority) for n, priority in enumerate((3, 0, 3, 9, 0))]
    world.worker(0)
    world.succeeds(*tasks)
    ran = [run.task for run in sorted(world.runs(), key=lambda run: run.start)]
    assert ran == [tasks[1], tasks[4], tasks[0], tasks[2], tasks[3]]


def test_a_pinned_task_waits_for_its_gpu_and_a_gpu_serves_its_pools_in_their_order(world):
    world.worker(0, "--gpu-pools", "a100,default")
    world.worker(1)
    blockers = [world.send("wait_for", "go", gpu=f"{HOST}:{gpu}") for gpu in (0, 1)]
    for blocker in blockers:
        world.started(blocker)
    default = [world.send("add", n, n) for n in range(2)]
    a100 = [world.send("add", n, n, pool="a100") for n in range(2)]
    pinned = world.send("add", 9, 9, gpu=f"{HOST}:0")
    world.open("go")
    world.succeeds(*blockers, *default, *a100, pinned)
    on_a100 = [run.task for run in sorted(world.runs(), key=lambda run: run.start) if run.gpu == f"{HOST}:0"]
    assert on_a100[1:4] == [pinned, *a100]


def test_another_prefix_stands_before_every_key(own_server, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(own_server.url, tmp_path, gpulease_key_prefix="{gpu}:") as world:
        world.worker(0)
        task = world.send("wait_for", "go")
        world.started(task)
        assert world.client.exists(f"{{gpu}}:lease:{HOST}:0")
        assert not world.client.keys("gpu:*")
        world.open("go")
        world.succeeds(task)


def test_beats_reconciler_wakes_a_worker_and_its_message_is_queued_nowhere(world):
    world.worker(0)
    beat = ("celery", "-A", "proj", "beat", "-l", "info", "--max-interval", "1", "--pidfile", "")
    process = world.processes.start(*beat, "-s", str(world.folder / "beat.db"), name="beat")
    process.wait_for_log("celery_gpulease.reconcile")
    first = world.client.hget("gpu:pulse", "reconciled_at")
    wait_until(lambda: world.client.hget("gpu:pulse", "reconciled_at") != first, SOON, "a reconciliation")
    assert world.client.llen("celery") == 0


def test_where_no_worker_hears_beat_reconciles_itself(world):
    beat = ("celery", "-A", "proj", "beat", "-l", "info", "--max-interval", "1", "--pidfile", "")
    world.processes.start(*beat, "-s", str(world.folder / "beat.db"), name="beat")
    wait_until(lambda: world.client.hget("gpu:pulse", "reconciled_at"), SOON, "a reconciliation")
    assert world.client.llen("celery") == 0


def test_workers_reconcile_by_themselves_where_no_beat_runs(world):
    world.worker(0)
    wait_until(lambda: world.client.hget("gpu:pulse", "reconciled_at"), SOON, "a reconciliation")


def test_status_and_pending_tell_who_waits_for_what(world):
    world.worker(0)
    blocker = world.send("wait_for", "go")
    run = world.started(blocker)
    waiting = [world.send("add", 1, 2), world.send("add", 1, 2, gpu=f"{HOST}:0"), world.send("add", 1, 2, pool="none")]
    later = world.send("add", 1, 2, countdown=600)
    status = json.loads(world.gpulease("status", "--json").output)
    assert status["pools"]["default"]["pending"] == 2
    assert status["pools"]["default"]["scheduled"] == 1
    assert status["pools"]["none"]["pending"] == 1
    (row,) = status["gpus"]
    assert (row["state"], row["task_id"], row["task"], row["fence"]) == ("leased", blocker, "proj.wait_for", run.fence)
    rows = {row["task_id"]: row for row in json.loads(world.gpulease("pending", "--json").output)}
    assert set(rows) == {*waiting, later}
    assert "leased" in rows[waiting[0]]["reason"]
    assert f"pinned to {HOST}:0" in rows[waiting[1]]["reason"]
    assert "no GPU serves pool 'none'" in rows[waiting[2]]["reason"]
    assert "not due yet" in rows[later]["reason"]
    for command in ("status", "pending"):
        assert blocker in world.gpulease(command).output or waiting[0] in world.gpulease(command).output
    world.client.flushdb()  # what nobody will run
    world.sent.clear()


def test_drain_and_undrain_and_an_unknown_gpu(world):
    world.worker(0)
    blocker = world.send("wait_for", "go")
    world.started(blocker)
    assert world.gpulease("drain", f"{HOST}:0").exit_code == 0
    assert world.row(0)["state"] == "draining"
    waiting = world.send("add", 1, 2)
    world.open("go")
    world.succeeds(blocker)
    wait_until(lambda: not world.lease(0), SOON, "the lease to go")
    assert world.runs(waiting) == []
    assert world.gpulease("undrain", f"{HOST}:0").exit_code == 0
    world.succeeds(waiting)
    unknown = world.gpulease("drain", "nowhere:7")
    assert unknown.exit_code == 1
    assert "nowhere:7" in unknown.log


def test_commands_say_that_redis_is_away_without_a_traceback(world, tmp_path):
    status = world.processes.start(
        "celery", "-A", "proj", "gpulease", "status", name="away", TEST_URL="redis://127.0.0.1:1/0"
    )
    assert status.wait() == 1
    assert "LedgerUnavailable" in status.log
    assert "Traceback" not in status.log
