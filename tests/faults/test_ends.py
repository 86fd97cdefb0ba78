"""Every accepted task has exactly one end, though its worker dies around it or the result backend is away."""

import json

import pytest
from celery import chord
from celery.backends.redis import RedisBackend

from celery_gpulease import LeaseLost
from tests.faults.world import HOST, LONG, SOON, frozen, kill, stored_state
from tests.waiting import wait_until

# a result that is there is asked for before a second run


@pytest.mark.parametrize(("how", "state"), [("SUCCESS", "SUCCESS"), ("FAILURE", "FAILURE")])
def test_a_worker_that_dies_after_its_tasks_end_was_stored_leaves_a_task_that_does_not_run_again(world, how, state):
    doomed = world.worker(0)
    task = world.send("end_as", how)
    world.ends(task, state)
    doomed.wait()
    other = world.worker(1)
    wait_until(lambda: not world.client.exists(f"gpu:task:{task}"), LONG, "the ticket to end")
    assert len(world.runs(task)) == 1
    assert "an earlier run has stored its end" in other.log
    result = world.ends(task, state)
    assert result == "SUCCESS" if how == "SUCCESS" else isinstance(result, ValueError)


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_where_celery_deduplicates_it_does_not_run_again_either_and_the_next_one_starts(world, pool):
    conf = {**world.conf, "worker_deduplicate_successful_tasks": True}
    doomed = world.worker(0)
    task = world.send("end_as", "SUCCESS")
    doomed.wait()
    world.worker(1, "-P", pool, TEST_CONF=json.dumps(conf))
    world.succeeds(world.send("add", 1, 2))
    wait_until(lambda: not world.client.exists(f"gpu:task:{task}"), LONG, "the ticket to end")
    assert world.ends(task, "SUCCESS") == "SUCCESS"
    assert len(world.runs(task)) == 1


@pytest.mark.parametrize("name", ["add", "fail"])
def test_a_part_of_a_chord_that_was_stored_and_not_counted_is_counted_by_the_next_run(world, name):
    world.conf["result_backend"] = f"dying:DyingBackend+{world.url}"
    settings = json.dumps(world.conf)
    doomed = world.worker(0, TEST_CONF=settings)
    args = (1, 2) if name == "add" else ()
    header = [world.app.signature(f"proj.{name}", args, options={"pool": "default"})]
    body = chord(header)(world.app.signature("proj.collect", options={"pool": "default"}))
    doomed.wait()
    world.worker(1, TEST_CONF=settings)
    (part,) = body.parent.results
    world.wait(body.ready, LONG, part.id)
    assert len(world.runs(part.id)) == 1
    assert (body.state, body.get(propagate=False)) == ("SUCCESS", [3]) if name == "add" else body.state == "FAILURE"


@pytest.mark.skipif(not hasattr(RedisBackend, "_chord_publish_claim_expires"), reason="Celery 5.7 claims bodies")
def test_a_chords_body_that_a_dead_worker_was_about_to_send_is_sent_when_celerys_claim_on_it_is_over(world):
    world.conf |= {"result_backend": f"dying:DyingBeforeTheBody+{world.url}", "result_chord_join_timeout": 1.0}
    settings = json.dumps(world.conf)
    doomed = world.worker(0, TEST_CONF=settings)
    header = [world.app.signature("proj.add", (1, 2), options={"pool": "default"})]
    body = chord(header)(world.app.signature("proj.collect", options={"pool": "default"}))
    doomed.wait()
    world.worker(1, TEST_CONF=settings)
    (part,) = body.parent.results
    world.wait(body.ready, LONG, part.id)
    assert (len(world.runs(part.id)), len(world.runs(body.id)), body.get(propagate=False)) == (1, 1, [3])


def test_a_part_of_a_chord_that_redis_refuses_to_count_is_counted_when_it_does_not(proxied):
    worker = proxied.worker(0)
    header = [proxied.app.signature("proj.wait_for", ("go",), options={"pool": "default"})]
    body = chord(header)(proxied.app.signature("proj.collect", options={"pool": "default"}))
    (part,) = body.parent.results
    proxied.started(part.id)
    proxied.ledger.drain(f"{HOST}:0", drained=True)  # else the next run may find Redis as it is now
    all_but_chords = ["[^c]*", "celery", "celery-task-*", "celeryev*"]
    proxied.client.acl_setuser("default", enabled=True, reset_keys=True, keys=all_but_chords)
    proxied.open("go")
    worker.wait_for_log("Pool callback raised exception")
    proxied.client.acl_setuser("default", enabled=True, keys=["*"])
    proxied.ledger.drain(f"{HOST}:0", drained=False)
    proxied.wait(body.ready, LONG, part.id)
    assert (body.state, body.get(propagate=False)) == ("SUCCESS", ["go"])
    assert len(proxied.runs(part.id)) == 1


def test_a_callback_that_can_never_be_sent_is_not_tried_again(world):
    world.worker(0)
    mail = world.app.signature("elsewhere.mail", queue="mails")
    task = world.send("fail", link_error=[mail, mail.clone().set(serializer="nonsense")])
    world.ends(task, "FAILURE")
    wait_until(lambda: not world.client.keys("gpu:ticket:*"), SOON, "its ticket to end")
    assert "requeued" not in world.story(task)


def test_who_is_about_to_write_lease_lost_asks_too(world):
    world.conf["gpulease_max_deliveries"] = 1
    doomed = world.worker(0, TEST_CONF=json.dumps(world.conf))
    task = world.send("end_as", "SUCCESS")
    doomed.wait()
    (ticket,) = world.client.hkeys(f"gpu:task:{task}")
    world.client.hset(f"gpu:ticket:{ticket}", "limit", 1)
    world.worker(1, TEST_CONF=json.dumps(world.conf))
    wait_until(lambda: not world.client.exists(f"gpu:ticket:{ticket}"), LONG, "the ticket to end")
    assert world.ends(task, "SUCCESS") == "SUCCESS"
    assert len(world.runs(task)) == 1


def test_the_end_of_an_earlier_task_of_the_same_id_does_not_pass_for_this_ones(world):
    world.worker(0)
    task = world.send("wait_then", "open", "FAILURE")
    world.open("open")
    world.ends(task, "FAILURE")
    world.app.send_task("proj.wait_then", ("go", "SUCCESS"), task_id=task, pool="default")
    run = world.started(task, number=2)
    kill(run.pid)
    world.started(task, number=3)
    world.open("go")
    wait_until(lambda: world.state(task) == "SUCCESS", LONG, "the end of the second")
    assert len(world.runs(task)) == 3


# a run that is superseded, or lost


def test_after_a_death_between_a_retry_and_its_release_the_first_attempt_does_not_run_again(world):
    doomed = world.worker(0)
    task = world.send("end_as", "RETRY")
    doomed.wait()
    world.worker(1)
    world.succeeds(task)
    assert [run.facts["retries"] for run in world.runs(task)] == [0, 1]


@pytest.mark.parametrize("how", ["SUCCESS", "FAILURE", "RETRY"])
def test_a_lost_run_stores_nothing_and_its_retry_is_not_held(world, how):
    world.conf["gpulease_on_lease_lost"] = "warn"  # it runs on, and is dropped at its end
    settings = json.dumps(world.conf)
    first = world.worker(0, TEST_CONF=settings)
    task = world.send("wait_then", "go", how)
    world.started(task)
    world.worker(1, TEST_CONF=settings)
    with frozen(first):
        again = world.started(task, number=2)
        if how == "FAILURE":  # the second one's end must be told from the first one's
            world.client.set(f"celery-task-meta-{task}", "")
    first.wait_for_log("has lost the lease")
    world.open("go")
    state = "FAILURE" if how == "FAILURE" else "SUCCESS"
    result = world.ends(task, state)
    if how != "FAILURE":
        assert result == again.gpu if how == "SUCCESS" else result.startswith(HOST)
    wait_until(lambda: all(run.end for run in world.runs(task)), SOON, "both runs to be over")
    assert len(world.runs(task)) == (3 if how == "RETRY" else 2)


def test_a_run_that_comes_back_after_its_task_has_failed_without_it_is_stopped_and_stores_nothing(world):
    worker = world.worker(0)
    task = world.send("wait_for_once", "never")
    world.started(task)
    world.worker(1)
    with frozen(worker):
        assert isinstance(world.ends(task, "FAILURE"), LeaseLost)
    worker.wait_for_log("has lost the lease")  # its ticket may be gone by now, or be about to go
    wait_until(lambda: world.runs(task)[0].how == "SystemExit", SOON, "the run to be stopped")
    world.succeeds(world.send("add", 1, 2, gpu=f"{HOST}:0"))
    assert isinstance(world.ends(task, "FAILURE"), LeaseLost)


# two steps


def test_an_end_whose_writer_died_is_written_by_the_next_one(world):
    world.send("add", 1, 2, expires=0.2)
    (task,) = world.sent
    wait_until(lambda: sum(world.ledger.promote()), SOON, "it to expire")
    ending = world.ledger.end()  # the writer takes it, and dies
    assert ending.task_id == task
    world.worker(0)
    world.client.zadd("gpu:ending", {ending.ticket: 1})  # half a minute later
    world.ends(task, "REVOKED")
    assert world.runs(task) == []


def test_an_end_that_cannot_be_stored_is_tried_again(world, own_server):
    world.conf["result_backend"] = own_server.url
    world.conf["redis_retry_on_timeout"] = False
    world.conf["result_backend_transport_options"] = {"retry_policy": {"max_retries": 0}}
    worker = world.worker(0, TEST_CONF=json.dumps(world.conf))
    own_server.kill()
    task = world.app.send_task("proj.add", (1, 2), pool="default", expires=0.1, countdown=60).id
    worker.wait_for_log("could not be written; it is tried again")
    own_server.start()
    (ticket,) = world.client.zrange("gpu:ending", 0, -1)
    world.client.zadd("gpu:ending", {ticket: 1})
    wait_until(lambda: stored_state(own_server.url, task) == "REVOKED", LONG, "the end")
    wait_until(lambda: not world.client.exists(f"gpu:ticket:{ticket}"), SOON, "the ticket to be forgotten")


def test_an_end_that_nobody_can_write_is_given_up_after_ten_tries_and_the_journal_says_so(world):
    world.worker(0, TEST_CONF=json.dumps({**world.conf, "result_backend": "redis://127.0.0.1:1/0"}))
    task = world.app.send_task("proj.add", (1, 2), pool="default", expires=0.1, countdown=60).id

    def given_up():
        for ticket in world.client.zrange("gpu:ending", 0, -1):
            world.client.zadd("gpu:ending", {ticket: 1})
        return "gave_up" in world.story(task)

    wait_until(given_up, LONG, "the end to be given up")
    assert not world.client.exists(f"gpu:task:{task}")


def test_without_a_result_backend_what_ends_unrun_is_forgotten_all_the_same(world):
    world.worker(0, TEST_CONF=json.dumps({**world.conf, "result_backend": None}))
    expired = world.app.send_task("proj.add", (1, 2), pool="default", expires=0.1, countdown=60).id
    killed = world.app.send_task("proj.die", pool="default").id
    for task in (expired, killed):
        world.wait(lambda task=task: not world.client.exists(f"gpu:task:{task}"), LONG, task)
    assert len(world.runs(killed)) == 3
    assert "gave_up" not in world.story(expired) + world.story(killed)


def test_lease_lost_is_an_error_that_the_sender_can_read(world):
    world.worker(0)
    error = world.ends(world.send("die"), "FAILURE")
    assert isinstance(error, LeaseLost)
    assert "3 times" in str(error)


@pytest.mark.skipif(not hasattr(RedisBackend, "_chord_publish_claim_expires"), reason="Celery 5.7 claims bodies")
def test_a_chords_body_that_is_claimed_for_long_keeps_no_other_end_from_being_written(world):
    world.conf |= {
        "result_backend": f"dying:DyingBeforeTheBody+{world.url}",
        "result_chord_join_timeout": 300.0,
        "gpulease_max_deliveries": 1,
    }
    settings = json.dumps(world.conf)
    doomed = world.worker(0, TEST_CONF=settings)
    header = [world.app.signature("proj.add", (1, 2), options={"pool": "default"})]
    body = chord(header)(world.app.signature("proj.collect", options={"pool": "default"}))
    (part,) = body.parent.results
    (ticket,) = world.client.hkeys(f"gpu:task:{part.id}")
    doomed.wait()
    world.worker(1, TEST_CONF=settings)
    wait_until(lambda: world.client.hget(f"gpu:ticket:{ticket}", "attempts") == "1", LONG, "a try to write its end")
    expired = world.send("add", 1, 2, gpu="nowhere:0", expires=1)
    world.wait(lambda: stored_state(world.url, expired) == "REVOKED", LONG, expired)
    (claim,) = world.client.scan_iter("celery-taskset-meta-*.c")
    world.client.delete(claim)  # its time is over
    world.client.zadd("gpu:ending", {ticket: 0})
    world.ledger.wake("due")
    world.wait(body.ready, LONG, part.id)
    assert (len(world.runs(part.id)), body.get(propagate=False)) == (1, [3])


@pytest.mark.skipif(not hasattr(RedisBackend, "_chord_publish_claim_expires"), reason="Celery 5.7 claims bodies")
def test_a_chord_fails_though_who_wrote_that_its_last_part_is_revoked_died_before_the_body_was_told(world):
    header = [world.app.signature("proj.add", (1, 2), options={"gpu": "nowhere:0"})]
    body = chord(header)(world.app.signature("proj.collect", options={"pool": "default"}))
    (part,) = body.parent.results
    (ticket,) = world.client.hkeys(f"gpu:task:{part.id}")
    claim = world.app.backend.get_key_for_group(body.parent.id, ".c")
    world.client.set(claim, "of a dead writer", ex=600)
    world.worker(0)
    world.gpulease("cancel", part.id)
    wait_until(lambda: world.client.hget(f"gpu:ticket:{ticket}", "attempts") == "1", LONG, "a try to write its end")
    world.client.delete(claim)  # its time is over
    world.client.zadd("gpu:ending", {ticket: 0})
    world.ledger.wake("due")
    world.wait(body.ready, LONG, part.id)
    assert (part.state, body.state) == ("REVOKED", "FAILURE")
