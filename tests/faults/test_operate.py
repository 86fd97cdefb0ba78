"""What an operator does, and what a task does with its own lease, with real workers under them."""

import json
import signal
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from celery_gpulease.operate.cli import gpulease
from tests.faults.conftest import world_on
from tests.faults.world import HOST, SOON, frozen, kill
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's result backend

# Neither a heartbeat nor a key's event is what notices.
DEAF = {"gpulease_lease_ttl": 200.0, "gpulease_heartbeat_interval": 90.0, "gpulease_reconcile_interval": 200.0,
        "gpulease_notifications": "off"}  # fmt: skip


@pytest.fixture
def deaf_world(redis_url, tmp_path, monkeypatch):
    """A world in which only what one is told at once is noticed."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(redis_url, tmp_path, **DEAF) as world:
        yield world
        world.rest()


def says(world, *arguments, code=0):
    """What a command prints, as an operator's machine runs it that has none of the project's tasks."""
    result = CliRunner().invoke(gpulease, arguments, obj=SimpleNamespace(app=world.app))
    assert result.exit_code == code, result.output
    return result.output


def given_back(world):
    """Has a task said that it gave its GPU back?"""
    return any(line["what"] == "given back" for line in world.journal())


def test_one_of_sixty_held_is_cancelled_and_another_bumped_and_the_rest_run_in_order(world):
    world.worker(0)
    busy = world.send("wait_for", "go")
    world.started(busy)
    tasks = [world.send("add", n, n, priority=5) for n in range(60)]
    later = world.send("add", 0, 0, countdown=3600)
    assert world.gpulease("cancel", tasks[30]).output == f"task {tasks[30]} is cancelled\n"
    assert "is cancelled" in says(world, "cancel", later)
    assert (world.state(tasks[30]), world.state(later)) == ("REVOKED", "REVOKED")
    assert "runs already" in says(world, "cancel", busy, code=1)
    assert "is number 1 in the line of default" in says(world, "bump", tasks[50], "--priority", "0")
    world.open("go")
    expected = [busy, tasks[50], *tasks[:30], *tasks[31:50], *tasks[51:]]
    world.succeeds(*expected)
    assert [run.task for run in world.runs()] == expected


def test_what_was_routed_to_a_worker_that_died_is_cancelled_with_nobody_alive(world):
    doomed = world.worker(0)
    world.until_free(0)
    for pid in (doomed.pid, *doomed.children()):
        kill(pid, signal.SIGSTOP)
    task = world.send("add", 1, 2)
    assert world.client.hget(f"gpu:claim:{HOST}:0", "state") == "claimed"
    doomed.kill()
    says(world, "cancel", task)
    assert world.state(task) == "REVOKED"
    following = world.send("add", 3, 4)
    world.worker(0)
    world.succeeds(following)
    assert world.runs(task) == []


def test_where_the_canceller_dies_a_worker_writes_the_end(world):
    task = world.send("add", 1, 2)
    assert world.ledger.cancel(task).taken  # and nothing more
    world.worker(0)
    world.ends(task, "REVOKED")
    assert world.runs(task) == []


def test_a_forced_run_is_told_at_once_and_stopped_and_its_task_runs_again(deaf_world):
    world = deaf_world
    world.worker(0)
    task = world.send("wait_for", "go")
    run = world.started(task)
    assert f"proj.wait_for[{task}] (gpu0@{HOST}) loses it" in says(world, "release", f"{HOST}:0", "--force")
    again = world.started(task, number=2)
    assert (world.runs(task)[0].how, again.fence > run.fence) == ("SystemExit", True)
    (ticket,) = world.client.hkeys(f"gpu:task:{task}")
    assert world.client.hget(f"gpu:ticket:{ticket}", "deliveries") == "2"
    world.open("go")
    world.succeeds(task)


def test_a_task_that_gave_its_gpu_back_is_followed_at_once_when_it_ends_and_may_retry(deaf_world):
    world = deaf_world
    world.worker(0)
    task, following = world.send("give_back", "go"), world.send("add", 1, 2)
    wait_until(lambda: given_back(world), SOON, "the early release")
    assert not world.lease(0)
    assert world.runs(following) == []
    world.open("go")
    world.succeeds(task, following, seconds=SOON)
    wait_until(lambda: not world.client.exists(f"gpu:claim:{HOST}:0"), SOON, "the GPU to be free")
    world.succeeds(world.send("give_back_and_retry"), seconds=SOON)


def test_a_forced_run_that_may_run_on_is_told_and_has_its_own_end(world):
    world.conf["gpulease_on_lease_lost"] = "warn"
    worker = world.worker(0, TEST_CONF=json.dumps(world.conf))
    task = world.send("watch", "go")
    world.started(task)
    following = world.send("add", 1, 2)
    says(world, "release", f"{HOST}:0", "--force")
    worker.wait_for_log("has lost the lease", SOON)
    world.take(0)
    world.open("go")
    assert world.ends(task, "SUCCESS") is True  # lease.lost
    assert len(world.runs(task)) == 1
    assert (world.lease(0), world.runs(following)) == ("stranger", [])
    assert "stranger loses it" in says(world, "release", f"{HOST}:0", "--force")
    world.succeeds(following)


def test_the_tail_of_a_killed_worker_runs_again_also_where_the_next_worker_serves_its_gpu(world):
    doomed = world.worker(0)
    task = world.send("give_back", "go")
    wait_until(lambda: given_back(world), SOON, "the early release")
    doomed.kill()
    world.worker(0)
    world.started(task, number=2)
    world.open("go")
    assert world.ends(task, "SUCCESS") is False  # lease.lost


@pytest.mark.parametrize("stop", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_drained_gpu_ends_what_it_runs_and_takes_nothing_also_when_its_worker_starts_again(world, stop):
    gpu = f"{HOST}:0"
    worker = world.worker(0)
    task = world.send("wait_for", "go")
    world.started(task)
    says(world, "drain", gpu)
    waiting = [world.send("add", 1, 2)]
    world.open("go")
    world.succeeds(task)
    worker.send(stop)
    worker.wait()
    worker = world.worker(0)
    waiting.append(world.send("add", 3, 4))
    assert world.row(0)["state"] == "draining"
    with frozen(worker):
        says(world, "undrain", gpu)
        assert world.client.hget(f"gpu:claim:{gpu}", "state") == "claimed"
        says(world, "drain", gpu)
    assert not world.client.exists(f"gpu:claim:{gpu}", f"gpu.{gpu}")
    assert world.runs(waiting[0]) == world.runs(waiting[1]) == []
    says(world, "undrain", gpu)
    world.succeeds(*waiting)
