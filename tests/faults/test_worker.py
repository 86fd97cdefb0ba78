"""A GPU task runs on the GPU that it leased, whatever becomes of its worker (prefork)."""

import json
import os
import re
import signal

import pytest
from celery import Celery

from celery_gpulease import LeaseLost
from tests.faults.world import HEARTBEAT, HOST, LONG, SOON, TTL, frozen, kill, now, stored_state
from tests.waiting import wait_until


def test_a_task_sees_its_gpu_and_the_lease_goes_when_it_ends(world):
    world.worker(3)
    task = world.send("wait_for", "go", headers={"trace": "abc"})
    run = world.started(task)
    assert (run.gpu, run.facts["index"], run.facts["visible"], run.facts["order"]) == (
        f"{HOST}:3",
        3,
        "3",
        "PCI_BUS_ID",
    )
    assert world.lease(3)
    assert "trace" in run.facts["headers"]
    assert run.fence == world.row(3)["fence"]
    world.open("go")
    world.succeeds(task)
    wait_until(lambda: not world.lease(3), SOON, "the lease to go")


def test_the_lease_is_renewed_for_as_long_as_the_task_runs(world):
    world.worker(0)
    task = world.send("wait_for", "go")
    run = world.started(task)
    token = world.lease(0)
    wait_until(lambda: now() > run.start + TTL + HEARTBEAT, SOON, "more than a ttl to pass")
    assert world.lease(0) == token
    world.open("go")
    world.succeeds(task)
    assert len(world.runs(task)) == 1


@pytest.mark.parametrize(
    ("name", "args", "state"),
    [("fail", (), "FAILURE"), ("retry_once", (0,), "SUCCESS"), ("replace_by_add", (1,), "SUCCESS")],
)
def test_however_a_task_ends_the_next_one_starts(world, name, args, state):
    world.worker(0)
    task, following = world.send(name, *args), world.send("add", 1, 2)
    world.ends(task, state)
    world.succeeds(following)


def test_a_retry_joins_the_line_and_goes_to_a_free_gpu_not_straight_back(world):
    world.worker(0)
    first = world.send("retry_once", 1.0)
    world.started(first)
    blocker = world.send("wait_for", "go", gpu=f"{HOST}:0")
    world.started(blocker)
    world.worker(1)
    run = world.started(first, number=2)
    assert run.gpu == f"{HOST}:1"
    assert run.facts["retries"] == 1
    world.open("go")
    world.succeeds(first, blocker)


def test_countdown_is_kept_and_the_task_sees_its_eta(world):
    world.worker(0)
    before = now()
    task = world.send("add", 1, 2, countdown=2)
    run = world.started(task)
    assert run.start >= before + 2
    assert run.facts["eta"] is not None


def test_what_expires_while_held_is_revoked_and_takes_no_gpu(world):
    world.worker(0)
    blocker = world.send("wait_for", "go")
    world.started(blocker)
    task = world.send("add", 1, 2, expires=0.5)
    world.ends(task, "REVOKED")
    assert world.runs(task) == []
    world.open("go")
    world.succeeds(blocker)


@pytest.mark.parametrize("name", ["die", "leave"])
def test_a_task_that_kills_its_process_each_time_ends_in_lease_lost_after_three_runs(world, name):
    world.worker(0)
    task = world.send(name, *([3] if name == "leave" else []))
    following = world.send("add", 1, 2)
    error = world.ends(task, "FAILURE")
    assert isinstance(error, LeaseLost)
    assert len(world.runs(task)) == 3
    world.succeeds(following)


def test_a_killed_workers_task_runs_again_elsewhere(world):
    doomed = world.worker(0)
    task = world.send("wait_for", "go")
    first = world.started(task)
    world.worker(1)
    doomed.kill()
    again = world.started(task, number=2)
    assert (first.gpu, again.gpu) == (f"{HOST}:0", f"{HOST}:1")
    world.open("go")
    world.succeeds(task)
    assert world.row(0)["state"] == "offline"


def test_with_20_000_other_keys_with_a_ttl_a_dead_workers_task_is_found_by_its_deadline(world):
    pipe = world.client.pipeline(transaction=False)
    for number in range(20_000):
        pipe.set(f"celery-task-meta-{number}", "{}", ex=86400)
    pipe.execute()
    doomed = world.worker(0, GPULEASE_HOST="far")  # no neighbour sees it die
    task = world.send("wait_for", "go")
    world.started(task)
    world.worker(1)
    doomed.kill()
    killed = now()
    again = world.started(task, number=2)
    print(f"ran again {again.start - killed:.2f} s after the kill; ttl {TTL:g} s")
    world.open("go")
    world.succeeds(task)


def test_a_task_that_may_not_run_twice_fails_when_its_worker_dies(world):
    doomed = world.worker(0)
    task = world.send("wait_for_once", "go")
    world.started(task)
    world.worker(1)
    doomed.kill()
    assert isinstance(world.ends(task, "FAILURE"), LeaseLost)
    assert len(world.runs(task)) == 1


def test_a_routed_message_of_a_dead_worker_runs_elsewhere_once(world):
    stopped = world.worker(0)
    world.until_free(0)
    with frozen(stopped):
        task = world.send("add", 1, 2)  # claimed for the frozen worker's GPU
        assert world.client.hget(f"gpu:claim:{HOST}:0", "state") == "claimed"
        world.worker(1)
        world.succeeds(task)
    assert len(world.runs(task)) == 1
    assert world.runs(task)[0].gpu == f"{HOST}:1"


def test_a_frozen_worker_whose_task_nobody_took_goes_on_with_its_lease(world):
    worker = world.worker(0)
    task = world.send("wait_for", "go")
    world.started(task)
    with frozen(worker):
        wait_until(lambda: not world.lease(0), SOON, "the lease to lapse")
    wait_until(lambda: world.lease(0), SOON, "the lease to be taken back")
    world.open("go")
    world.succeeds(task)
    assert len(world.runs(task)) == 1


def test_a_lease_deleted_under_a_running_job_is_taken_back_and_nothing_else_starts(world):
    world.worker(0)
    task, following = world.send("wait_for", "go"), world.send("add", 1, 2)
    world.started(task)
    world.give(0)
    wait_until(lambda: world.lease(0), SOON, "the lease to be taken back")
    assert world.runs(following) == []
    world.open("go")
    world.succeeds(task, following)


def test_a_robbed_task_is_stopped_and_runs_again_when_the_gpu_is_back(world):
    world.worker(0)
    task = world.send("wait_for", "go")
    run = world.started(task)
    world.client.set(world.ledger.keys.lease(f"{HOST}:0"), "robber", px=60_000)
    wait_until(lambda: world.runs(task)[0].how == "SystemExit", SOON, "the robbed run to be stopped")
    assert world.client.get(world.ledger.keys.lease(f"{HOST}:0")) == "robber"
    world.give(0)
    assert world.started(task, number=2).fence > run.fence
    world.open("go")
    world.succeeds(task)


def test_a_stranger_is_waited_for_and_its_del_starts_the_next_task(world):
    world.worker(0)
    world.take(0)
    task = world.send("add", 1, 2)
    assert world.row(0)["state"] == "leased"
    assert world.runs(task) == []
    world.give(0)
    world.succeeds(task)


def test_a_wish_keeps_the_gpu_for_who_wants_it(world):
    world.worker(0)
    world.client.set(f"gpu:want:{HOST}:0", "me", px=60_000)
    task = world.send("add", 1, 2)
    world.take(0)
    world.client.delete(f"gpu:want:{HOST}:0")
    assert world.runs(task) == []
    world.give(0)
    world.succeeds(task)


def test_what_is_given_back_early_can_be_borrowed_while_the_task_works_on(world):
    world.worker(0)
    task = world.send("give_back", "go")
    world.started(task)
    wait_until(lambda: any(line["what"] == "given back" for line in world.journal()), SOON, "the early release")
    world.take(0)
    following = world.send("add", 1, 2)
    world.open("go")
    world.succeeds(task)
    assert world.lease(0) == "stranger"
    assert world.runs(following) == []
    world.give(0)
    world.succeeds(following)


def test_a_warm_shutdown_ends_what_runs_and_leaves_the_rest(world):
    worker = world.worker(0)
    task, waiting = world.send("wait_for", "go"), world.send("add", 1, 2)
    world.started(task)
    worker.send(signal.SIGTERM)
    wait_until(lambda: world.client.hexists(f"gpu:closed:{HOST}:0", "closing"), SOON, "the worker to close")
    late = world.send("add", 3, 4)
    world.open("go")
    assert worker.wait() == 0
    world.succeeds(task)
    assert world.runs(waiting) == world.runs(late) == []
    assert world.row(0)["state"] == "offline"
    world.worker(0)
    world.succeeds(waiting, late)


def test_a_cold_shutdown_gives_back_what_ran_and_it_does_not_count(world):
    worker = world.worker(0)
    task = world.send("wait_for", "go")
    world.started(task)
    worker.send(signal.SIGQUIT)
    worker.wait()
    wait_until(lambda: not world.lease(0), SOON, "the lease to go")
    (ticket,) = world.client.hkeys(f"gpu:task:{task}")
    assert world.client.hget(f"gpu:ticket:{ticket}", "deliveries") == "0"
    world.open("go")
    world.worker(0)
    world.succeeds(task)


def test_the_next_worker_starts_after_a_clean_stop_and_after_a_kill(world):
    worker = world.worker(0)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    worker = world.worker(0)
    worker.kill()
    world.worker(0)
    world.succeeds(world.send("add", 1, 2))


def test_a_childs_death_is_found_although_nobody_says_so(world):
    world.worker(0)
    task = world.send("wait_for", "go")
    run = world.started(task)
    kill(run.pid)
    again = world.started(task, number=2)
    assert again.fence > run.fence
    world.open("go")
    world.succeeds(task)


def test_a_hard_time_limit_ends_in_failure_once_and_the_gpu_goes_on(world):
    world.worker(0)
    task, following = world.send("wait_for", "never", time_limit=1), world.send("add", 1, 2)
    world.ends(task, "FAILURE")
    world.succeeds(following)
    assert len(world.runs(task)) == 1


def test_revoke_terminate_ends_in_revoked_and_the_gpu_is_free_when_the_child_is_gone(world):
    world.worker(0)
    task, following = world.send("wait_for", "never"), world.send("add", 1, 2)
    run = world.started(task)
    world.app.control.revoke(task, terminate=True)
    world.ends(task, "REVOKED")
    world.succeeds(following)
    assert len(world.runs(task)) == 1
    assert world.runs(following)[0].pid != run.pid


def test_a_child_that_is_forked_while_an_end_is_written_finds_no_lock_of_celerys_closed(world):
    """Celery's backend has one lock for the clients of all threads, and the child that comes next needs it too."""
    slow = {**world.conf, "result_backend": f"slow_backend.SlowBackend+{world.url}"}
    worker = world.worker(0, TEST_CONF=json.dumps(slow))
    running, held = world.send("wait_for", "go"), world.send("add", 1, 2)
    run = world.started(running)
    with Celery("stranger", broker=world.url, set_as_current=False) as stranger:
        stranger.control.revoke(held)  # so a thread of the worker writes that end
    worker.wait_for_log("Tasks flagged as revoked")
    os.kill(run.pid, signal.SIGKILL)
    world.ends(held, "REVOKED")
    world.open("go")
    world.succeeds(running)


def test_a_message_put_into_the_queue_by_hand_is_held_and_runs_under_a_lease(world):
    worker = world.worker(0)
    blocker = world.send("wait_for", "go")
    world.started(blocker)
    stranger = Celery("stranger", broker=world.url, backend=world.url, set_as_current=False)
    task = stranger.send_task("proj.add", (1, 2), queue=f"gpu.{HOST}:0").id
    world.sent.append(task)
    world.open("go")
    world.succeeds(task)
    assert "came past the ledger" in worker.log
    stranger.close()


def test_an_unknown_task_ends_as_celery_ends_it_and_the_gpu_goes_on(world):
    worker = world.worker(0)
    task, following = world.send("no_such_task"), world.send("add", 1, 2)
    error = world.ends(task, "FAILURE")
    assert "no_such_task" in str(error)
    world.succeeds(following)
    assert re.search(r"The message of ticket \S+ is over: GPU", worker.log)


def test_our_lines_of_the_log_name_a_task_as_celerys_do(world):
    worker = world.worker(0)
    task = world.send("add", 1, 2, expires=600)
    world.succeeds(task)
    worker.wait_for_log(f"proj.add[{task}] is over: GPU")
    assert f"proj.add[{task}] starts on GPU" in worker.log


def test_only_the_gpus_queue_is_consumed(world):
    world.worker(0, "-c", "4", "-Q", "celery,other")
    task = world.app.send_task("proj.plain")
    world.succeeds(world.send("add", 1, 2))
    assert not [line for line in world.journal() if line["what"] == "plain"]
    assert world.client.llen("celery") == 1
    assert world.state(task.id) == "PENDING"


def test_a_gpu_task_that_comes_to_a_worker_without_a_gpu_is_held_for_one(world):
    plain = world.processes.start("celery", "-A", "proj", "worker", "-c", "1", "-l", "info", name="plain")
    plain.wait_for_log(" ready.")
    world.worker(0)
    with Celery("stranger", broker=world.url, backend=world.url, set_as_current=False) as stranger:
        task = stranger.send_task("proj.add", (1, 2), compression="zlib").id
    world.sent.append(task)
    world.succeeds(task)
    (run,) = world.runs(task)
    assert run.gpu == f"{HOST}:0"


def test_a_rate_limited_task_holds_no_lease_while_it_waits(world):
    world.worker(0)
    limited = [world.send("limited") for _ in range(4)]
    others = [world.send("add", 1, 2) for _ in range(4)]
    world.succeeds(*others, *limited)
    starts = [world.runs(task)[0].start for task in limited]
    assert starts == sorted(starts)
    assert starts[-1] - starts[0] > 1.4
    assert max(run.end for run in world.runs() if run.task in others) < starts[-1]


def test_a_robbed_task_that_may_run_on_has_its_own_end(world):
    world.conf["gpulease_on_lease_lost"] = "warn"
    world.worker(0, TEST_CONF=json.dumps(world.conf))
    task = world.send("wait_for", "go")
    world.started(task)
    world.client.set(world.ledger.keys.lease(f"{HOST}:0"), "robber", px=60_000)
    wait_until(lambda: "robbed" in world.story(task), SOON, "the theft to be noticed")
    world.open("go")
    world.succeeds(task)
    assert len(world.runs(task)) == 1
    world.give(0)


def test_a_cold_shutdown_fails_what_may_not_run_twice(world):
    worker = world.worker(0)
    task = world.send("wait_for_once", "never")
    world.started(task)
    worker.send(signal.SIGQUIT)
    worker.wait()
    world.worker(1)  # writes the end that its worker left
    assert isinstance(world.ends(task, "FAILURE"), LeaseLost)


def test_a_worker_that_stops_finishes_the_end_that_it_writes(world):
    slow = {**world.conf, "result_backend": f"slow_backend.StoringSlowly+{world.url}"}
    worker = world.worker(0, TEST_CONF=json.dumps(slow))
    task = world.send("wait_for_once", "never")
    world.started(task)
    os.kill(worker.pid, signal.SIGKILL)
    other = world.worker(1, TEST_CONF=json.dumps(slow))
    wait_until(lambda: world.state(task) == "FAILURE", LONG, "its end to be stored")
    other.send(signal.SIGTERM)
    other.wait()
    assert not world.client.exists("gpu:ending")


def test_who_is_told_not_to_consume_is_given_no_work(world):
    worker = world.worker(0)
    queue = f"gpu.{HOST}:0"
    world.app.control.cancel_consumer(queue, reply=True, timeout=5)
    task = world.send("add", 1, 2)
    worker.wait_for_log("Canceling queue")
    assert world.row(0)["state"] == "offline"
    assert not world.client.exists(f"gpu:claim:{HOST}:0")
    world.client.delete(f"gpu:device:{HOST}:0")  # it joins again, and does not consume all the same
    wait_until(lambda: world.client.exists(f"gpu:device:{HOST}:0"), SOON, "the worker to join again")
    wait_until(lambda: world.row(0)["state"] == "offline", SOON, "its GPU to be closed again")
    world.app.control.add_consumer("other", reply=True, timeout=5)
    assert "other is left alone" in worker.log
    world.app.control.add_consumer(queue, reply=True, timeout=5)
    world.succeeds(task)


def test_where_the_result_backend_is_away_the_gpu_goes_on_and_the_end_comes_later(world, own_server):
    conf = {
        **world.conf,
        "result_backend": own_server.url,
        "result_backend_transport_options": {"retry_policy": {"max_retries": 0}},
        "redis_retry_on_timeout": False,
    }
    world.worker(0, TEST_CONF=json.dumps(conf))
    task = world.app.send_task("proj.wait_for", ("never",), pool="default", time_limit=2).id
    world.started(task)
    own_server.kill()
    wait_until(lambda: "could not be stored" in world.story(task), LONG, "the end to fail")
    own_server.start()
    wait_until(lambda: stored_state(own_server.url, task) == "FAILURE", LONG, "the end")
    wait_until(lambda: not world.lease(0), SOON, "the GPU to be free")


def test_what_celery_drops_on_its_way_to_a_slow_child_comes_back_and_runs_once(world):
    # else Celery makes a FAILURE of a SUCCESS whose result was on its way when the connection was cut
    conf = {**world.conf, "result_backend_always_retry": True}
    worker = world.worker(0, "--max-tasks-per-child", "1", TEST_SLOW_INIT="2", TEST_CONF=json.dumps(conf))
    tasks = [world.send("add", n, n) for n in range(4)]
    for number in range(1, 5):
        wait_until(lambda number=number: worker.log.count(" received") >= number, SOON, "another task to be received")
        for kind in ("normal", "pubsub"):
            world.client.client_kill_filter(_type=kind, skipme=True)
    world.succeeds(*tasks)
    assert "was dropped by Celery" in worker.log
    assert [len(world.runs(task)) for task in tasks] == [1, 1, 1, 1]


@pytest.mark.long
def test_a_visibility_timeout_shorter_than_the_task_brings_no_second_run(world):
    world.conf["broker_transport_options"] = {"visibility_timeout": 1, "unacked_restore_interval": 1}
    settings = json.dumps(world.conf)
    world.worker(0, TEST_CONF=settings)
    task = world.send("wait_for", "go")
    run = world.started(task)
    world.worker(1, TEST_CONF=settings)  # whoever starts restores what is overdue
    wait_until(lambda: now() > run.start + 2 * TTL, SOON, "two ttl to pass")
    world.open("go")
    world.succeeds(task)
    assert len(world.runs(task)) == 1
    assert not world.client.exists("unacked", "unacked_index")
