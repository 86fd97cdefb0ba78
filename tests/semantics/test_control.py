"""Control: a revoke means for a GPU task what it means in Celery, wherever the task is."""

import os
import signal
from contextlib import closing

import pytest
from celery import Celery
from celery.result import GroupResult

from celery_gpulease import GPULease
from tests.faults.world import HOST, LONG, SOON, frozen
from tests.semantics.steering import NOWHERE, Lab
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's result backend


@pytest.fixture(scope="module")
def shared(server_binary, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPULEASE_HOST", HOST)
        with closing(Lab(server_binary, tmp_path_factory.mktemp("control"))) as lab:
            yield lab


@pytest.fixture
def lab(shared):
    """Two workers, which the tests share."""
    yield shared
    shared.rest()


@pytest.fixture
def lonely(server_binary, tmp_path, monkeypatch):
    """No worker lives."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with closing(Lab(server_binary, tmp_path, workers=0)) as lab:
        yield lab
        lab.rest()


def result(lab, task):
    return lab.world.app.AsyncResult(task)


def revoke_group(lab, task):
    """As a group's result does it."""
    one = result(lab, task)
    GroupResult("group", [one], app=lab.world.app).revoke()
    lab.world.app.backend.remove_pending_result(one)  # else it outlives the server


HELD = {
    "in line": {"pool": NOWHERE},
    "scheduled": {"countdown": 3600},
    "pinned": {"gpu": "elsewhere:3"},
    "to expire": {"pool": NOWHERE, "expires": 3600},
}

WAYS = {
    "AsyncResult.revoke": lambda lab, task: result(lab, task).revoke(),
    "a group's revoke": revoke_group,
    "by id": lambda lab, task: lab.world.app.control.revoke(task),
    "with terminate": lambda lab, task: result(lab, task).revoke(terminate=True, signal="SIGKILL"),
    "control.terminate": lambda lab, task: lab.world.app.control.terminate(task),
    "to one worker only": lambda lab, task: lab.world.app.control.revoke(task, destination=[f"gpu0@{HOST}"]),
    "by a sender without GPULease": lambda lab, task: lab.plain.control.revoke(task),
    "celery control revoke": lambda lab, task: lab.celery("control", "revoke", task),
    "celery control terminate": lambda lab, task: lab.celery("control", "terminate", "TERM", task),
    "gpulease cancel": lambda lab, task: lab.celery("gpulease", "cancel", task),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_held_task_is_revoked_as_in_celery_in_every_way(lab, way):
    task = lab.send("add", 1, 2, pool=NOWHERE)
    WAYS[way](lab, task)
    lab.is_revoked(task)
    (line,) = lab.noted(task)
    assert line["args"] == [1, 2]


@pytest.mark.parametrize("where", HELD)
def test_it_is_revoked_wherever_it_is_held(lab, where):
    task = lab.send("add", 1, 2, **HELD[where])
    result(lab, task).revoke()
    assert lab.world.state(task) == "REVOKED"  # at once
    lab.is_revoked(task)


def test_a_routed_task_is_revoked_and_its_gpu_goes_to_the_next(lab):
    lab.world.until_free(0)
    with frozen(lab.workers[0]):
        task = lab.send("add", 1, 2, gpu=f"{HOST}:0")
        assert lab.world.client.hget(f"gpu:claim:{HOST}:0", "state") == "claimed"
        result(lab, task).revoke()
        assert lab.world.state(task) == "REVOKED"
        following = lab.send("add", 3, 4, gpu=f"{HOST}:0")
    lab.world.succeeds(following)
    lab.is_revoked(task)


def test_a_running_task_is_not_touched_by_a_revoke_that_does_not_terminate(lab):
    task = lab.send("wait_for", "runs on")
    lab.world.started(task)
    lab.world.app.control.revoke(task, reply=True, timeout=SOON, limit=2)
    lab.world.open("runs on")
    # a worker of Celery 5.7 that does not run it stores REVOKED meanwhile, which its own end overwrites
    lab.world.wait(lambda: lab.world.state(task) == "SUCCESS", SOON, task)
    assert lab.noted(task) == []


def test_a_running_task_is_terminated(lab):
    task = lab.send("wait_for", "never")
    lab.world.started(task)
    result(lab, task).revoke(terminate=True)
    lab.is_revoked(task, terminated=True, ran=1)


def test_a_task_is_revoked_before_it_is_sent(lab):
    task = "not sent yet"
    lab.world.app.control.revoke([task])
    lab.send("add", 1, 2, task_id=task)
    assert lab.world.state(task) == "REVOKED"
    lab.is_revoked(task)


def test_the_retry_of_a_task_that_was_revoked_while_it_ran_is_revoked(lab):
    task = lab.send("retry_when_revoked")
    lab.world.started(task)
    result(lab, task).revoke()
    lab.world.open(task)
    lab.is_revoked(task, ran=1)


def test_both_tickets_of_a_task_that_was_sent_twice_are_taken_back(lab):
    for options in ({"pool": NOWHERE}, {"countdown": 3600}):
        lab.send("add", 1, 2, task_id="twice", **options)
    result(lab, "twice").revoke()
    wait_until(lambda: not lab.world.client.exists("gpu:task:twice"), SOON, "both to end")
    assert lab.world.state("twice") == "REVOKED"
    assert len(lab.noted("twice")) == 2


STAMPS = {
    "the sender": lambda lab, stamps: lab.world.app.control.revoke_by_stamped_headers(stamps),
    "a result": lambda lab, stamps: result(lab, "any").revoke_by_stamped_headers(stamps),
    "a sender without GPULease": lambda lab, stamps: lab.plain.control.revoke_by_stamped_headers(stamps),
    "celery control": lambda lab, stamps: lab.celery(
        "control", "revoke_by_stamped_headers", *(f"{name}={stamp}" for name, stamp in stamps.items())
    ),
}


def stamped(lab, **stamps):
    """A task that waits, and bears these stamps."""
    signature = lab.world.app.signature("proj.add", (1, 2), options={"pool": NOWHERE})
    signature.stamp(**stamps)
    task = signature.apply_async().id
    lab.world.sent.append(task)
    return task


@pytest.mark.parametrize("who", STAMPS)
def test_by_a_stamped_header_what_bears_it_is_revoked_and_nothing_else(lab, who):
    one, several = stamped(lab, customer=who), stamped(lab, customer=[who, "another"], night="7")
    others = [stamped(lab, customer="acme"), stamped(lab, order=who), lab.send("add", 1, 2, pool=NOWHERE)]
    STAMPS[who](lab, {"customer": who})
    lab.is_revoked(one)
    lab.is_revoked(several)
    later = stamped(lab, customer=who)
    lab.is_revoked(later)
    assert {lab.world.state(task) for task in others} == {"PENDING"}
    lab.world.app.control.revoke(others)


def test_a_running_task_is_terminated_by_a_stamped_header(lab):
    signature = lab.world.app.signature("proj.wait_for", ("never",), options={"pool": "default"})
    signature.stamp(night="8")
    task = signature.apply_async().id
    lab.world.started(task)
    lab.world.app.control.revoke_by_stamped_headers({"night": ["8"]}, terminate=True)
    lab.is_revoked(task, terminated=True, ran=1)


@pytest.mark.parametrize("number", [300, pytest.param(5000, marks=pytest.mark.long)])
def test_thousands_are_revoked_in_one_call(lab, number):
    signature = lab.world.app.signature("proj.add", (1, 2), options={"pool": NOWHERE})
    tasks = [signature.apply_async().id for _ in range(number)]
    lab.world.app.control.revoke([*tasks, "plain"])
    assert lab.world.client.zcard(f"gpu:pending:{NOWHERE}") == 0
    wait_until(lambda: not lab.world.client.zcard("gpu:ending"), LONG, "all to end")
    assert {lab.world.state(task) for task in tasks} == {"REVOKED"}
    assert len({line["task"] for line in lab.world.journal() if line["what"] == "revoked"} & {*tasks}) == number


def test_a_plain_tasks_id_is_revoked_as_ever(lab):
    lab.world.app.control.revoke("plain")
    replies = lab.world.app.control.inspect(timeout=SOON, limit=2).revoked()
    assert all("plain" in revoked for revoked in replies.values())
    assert len(replies) == 2


def test_celerys_revoke_goes_out_where_the_ledger_cannot_be_told_and_that_is_said(lab, caplog):
    with Celery("astray", broker=lab.server.url, set_as_current=False) as app:
        app.conf.gpulease_lease_ttl = -1
        GPULease(app)
        app.control.revoke("astray", reply=True, timeout=SOON, limit=2)
    assert "revoke: what is held for GPUs is not taken back: gpulease_lease_ttl" in caplog.text
    assert "astray" in lab.plain.control.inspect(timeout=SOON, limit=2).revoked()[f"gpu0@{HOST}"]


def test_with_no_living_worker_it_is_revoked_when_the_call_returns(lonely):
    tasks = [lonely.send("add", 1, 2, **where) for where in HELD.values()]
    lonely.world.app.control.revoke(tasks)
    assert {lonely.world.state(task) for task in tasks} == {"REVOKED"}
    assert lonely.world.client.keys("gpu:ticket:*") == []
    signature = lonely.world.app.signature("proj.add", (1, 2), options={"pool": NOWHERE})
    signature.stamp(customer="acme")
    task = signature.apply_async().id
    lonely.world.app.control.revoke_by_stamped_headers({"customer": "acme"})
    assert lonely.world.state(task) == "REVOKED"


def test_a_revoke_survives_restarts(lonely):
    lab = lonely
    lab.workers.append(lab.start(0))
    task = lab.send("wait_for", "never")
    lab.world.started(task)
    result(lab, task).revoke()  # it runs on, until its worker dies
    lab.world.app.control.revoke("not sent yet")
    lab.workers[0].kill()
    lab.workers.append(lab.start(0))
    lab.send("add", 1, 2, task_id="not sent yet")
    lab.is_revoked("not sent yet")
    lab.is_revoked(task, ran=1)


def test_what_was_routed_to_a_worker_that_died_is_revoked(lonely):
    lab = lonely
    lab.workers.append(lab.start(0))
    lab.world.until_free(0)
    for pid in (lab.workers[0].pid, *lab.workers[0].children()):
        os.kill(pid, signal.SIGSTOP)
    task = lab.send("add", 1, 2)
    lab.workers[0].kill()
    result(lab, task).revoke()
    assert lab.world.state(task) == "REVOKED"


def test_a_purge_says_what_it_does_not_purge(lonely, caplog):
    tasks = [lonely.send("add", 1, 2, pool=NOWHERE), lonely.send("add", 1, 2, countdown=3600)]
    words = f"GPU tasks that are held are not purged: 1 of pool default, 1 of pool {NOWHERE}."
    assert lonely.world.app.control.purge() == 0
    assert words in caplog.text
    assert words in lonely.celery("purge", "-f").output
    assert [lonely.world.state(task) for task in tasks] == ["PENDING"] * 2
    lonely.world.app.control.revoke(tasks)
    caplog.clear()
    lonely.world.app.control.discard_all()
    assert caplog.text == ""


def test_all_that_a_pool_holds_is_cancelled_when_the_question_is_answered(lonely):
    lab = lonely
    mine = [lab.send("add", 1, 2, pool=NOWHERE), lab.send("add", 1, 2, pool=NOWHERE, countdown=3600)]
    mine.append(lab.send("add", 1, 2, pool=NOWHERE, gpu="elsewhere:3"))
    other = lab.send("add", 1, 2)
    assert "Aborted!" in lab.celery("gpulease", "cancel", "--all", "--pool", NOWHERE).log  # no answer
    assert [lab.world.state(task) for task in mine] == ["PENDING"] * 3
    said = lab.celery("gpulease", "cancel", "--all", "--pool", NOWHERE, "--yes")
    assert (said.exit_code, said.output) == (0, f"3 tasks of pool {NOWHERE} cancelled\n")
    assert [lab.world.state(task) for task in [*mine, other]] == ["REVOKED"] * 3 + ["PENDING"]
    lab.world.app.control.revoke(other)
