"""Messages of GPU tasks that come past the ledger are held and leased, never run without; the same one runs once."""

import base64
import json
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery

from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.ledger.checks import inconsistencies
from tests.faults.conftest import world_on
from tests.faults.world import HOST, PROJECT, SOON, frozen, overlaps
from tests.waiting import wait_until

#: The projects of this folder, over those of the fault tests.
PATH = f"{Path(__file__).parent / 'project'}:{PROJECT}"
QUEUE = f"gpu.{HOST}:0"
#: So that kombu gives a message out again within a test, by the sweep of any consumer.
SWEEP = {"visibility_timeout": 1, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}


class Elsewhere:
    """One server, a GPU's worker, a plain one, and a sender that knows nothing of leases."""

    def __init__(self, world):
        self.world = world
        self.stranger = Celery("stranger", broker=world.url, backend=world.url, set_as_current=False)
        command = ("celery", "-A", "elsewhere", "worker", "-c", "1", "-l", "info", "-n", "plain@node7")
        self.plain = world.processes.start(*command, name="plain", PYTHONPATH=PATH)
        self.gpu = self.gpu_worker()
        self.plain.wait_for_log(" ready.")
        self.world.until_free(0)

    def gpu_worker(self):
        return self.world.processes.worker("elsewhere", 0, PYTHONPATH=PATH)

    def send(self, name, *args, **options):
        """As any other Celery app does: into the default queue, unless it says another."""
        return self.stranger.send_task(name, args, **options).id

    def raw(self, name, *args, task_id=None, **headers):
        """A message as it lies in a Redis queue, of no certain sender."""
        task_id = task_id or str(uuid.uuid4())
        body = json.dumps([list(args), {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
        return task_id, {
            "body": base64.b64encode(body.encode()).decode(),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {"lang": "py", "task": name, "id": task_id, "root_id": task_id, "retries": 0, **headers},
            "properties": {
                "delivery_tag": str(uuid.uuid4()),
                "delivery_info": {"exchange": "", "routing_key": QUEUE},
                "body_encoding": "base64",
                "priority": 0,
            },
        }

    def forbid(self):
        """The ledger's scripts, as an administrator may by mistake; queues and results go on."""
        self._acl("-eval", "-evalsha")

    def allow(self):
        self._acl("+@all")
        self.world.client.delete("unacked_mutex")  # kombu's lock, which it could not give back without a script

    def _acl(self, *commands):
        self.world.client.acl_setuser("default", enabled=True, nopass=True, commands=list(commands))

    def push(self, message, queue=QUEUE):
        self.world.client.lpush(queue, json.dumps(message))

    def held(self, task):
        """What the journal says of its holding: one line for each ticket."""
        entries = [fields for _, fields in self.world.client.xrange("gpu:journal")]
        return [one for one in entries if one["task_id"] == task and one["what"] in ("held", "scheduled")]

    def runs_once(self, task, state="SUCCESS"):
        """It has run once, under a lease."""
        self.world.ends(task, state)
        wait_until(lambda: not self.world.client.exists(f"gpu:task:{task}"), SOON, "its ticket to end")
        (run,) = self.world.runs(task)
        assert (run.gpu, run.fence > 0) == (f"{HOST}:0", True)


@pytest.fixture(scope="module")
def elsewhere(server_binary, tmp_path_factory):
    with (
        pytest.MonkeyPatch.context() as patch,
        EmbeddedServer(binary=server_binary) as server,
        world_on(server.url, tmp_path_factory.mktemp("elsewhere"), broker_transport_options=SWEEP) as world,
    ):
        patch.setenv("GPULEASE_HOST", HOST)
        yield Elsewhere(world)


@pytest.fixture(autouse=True)
def at_rest(elsewhere):
    """Nothing is left of a test."""
    yield
    world = elsewhere.world
    wait_until(lambda: not world.client.keys("gpu:lease:*"), SOON, "all leases to go")
    wait_until(lambda: not world.client.keys("gpu:ticket:*"), SOON, "all tickets to end")
    wait_until(lambda: not inconsistencies(world.ledger), SOON, "a consistent ledger")
    wait_until(lambda: not world.client.exists("unacked", "celery", QUEUE), SOON, "all queues to be empty")
    assert overlaps(world.runs()) == []


# held and leased, never run without


@pytest.mark.parametrize("queue", [QUEUE, "celery"], ids=["a GPU's queue", "a plain worker's queue"])
def test_a_task_of_a_sender_without_the_library_is_held_and_leased(elsewhere, queue):
    task = elsewhere.send("proj.add", 1, 2, queue=queue)
    elsewhere.runs_once(task)
    assert elsewhere.world.app.AsyncResult(task).result == 3


def test_a_message_put_straight_into_the_queue_by_hand_is_held_and_leased(elsewhere):
    task, message = elsewhere.raw("proj.add", 1, 2)
    elsewhere.push(message)
    elsewhere.runs_once(task)


def test_a_plain_worker_without_an_event_loop_of_its_own_holds_it_too(elsewhere):
    command = ("celery", "-A", "elsewhere", "worker", "-P", "solo", "-Q", "solo", "-n", "solo@node7", "-l", "info")
    solo = elsewhere.world.processes.start(*command, name="solo", PYTHONPATH=PATH)
    solo.wait_for_log(" ready.")
    for _ in range(2):
        elsewhere.runs_once(elsewhere.send("proj.add", 1, 2, queue="solo"))
    wait_until(lambda: not elsewhere.world.client.exists("unacked"), SOON, "both to be acknowledged")
    solo.close()


def test_it_waits_its_turn_like_any_other(elsewhere):
    world = elsewhere.world
    blocker = elsewhere.send("proj.wait_for", "turn", queue=QUEUE)
    world.started(blocker)
    last = elsewhere.send("proj.add", 1, 2, queue=QUEUE, priority=9)
    first = elsewhere.send("proj.add", 1, 2, queue="celery", priority=0)
    for task in (last, first):
        wait_until(lambda task=task: elsewhere.held(task), SOON, "both to be held")
    world.open("turn")
    for task in (blocker, last, first):
        elsewhere.runs_once(task)
    assert world.runs(first)[0].start < world.runs(last)[0].start


def test_a_message_of_an_older_version_goes_to_the_pool_and_the_gpu_that_it_names(elsewhere):
    old = {"ticket": "0123", "pool": "old", "pin": f"{HOST}:0", "eta": None}
    task, message = elsewhere.raw("proj.add", 1, 2, gpulease=old)
    elsewhere.push(message, "celery")
    elsewhere.runs_once(task)
    assert [one["detail"] for one in elsewhere.held(task)] == ["old"]


def test_a_message_of_protocol_1_is_held_and_leased(elsewhere):
    old = Celery("old", broker=elsewhere.world.url, backend=elsewhere.world.url, set_as_current=False)
    old.conf.task_protocol = 1
    for queue in (QUEUE, "celery"):
        elsewhere.runs_once(old.send_task("proj.add", (1, 2), queue=queue).id)
    later = old.send_task("proj.add", (1, 2), queue=QUEUE, countdown=1).id
    elsewhere.runs_once(later)
    assert [one["what"] for one in elsewhere.held(later)] == ["scheduled"]


@pytest.mark.parametrize("queue", [QUEUE, "celery"], ids=["a GPU's queue", "a plain worker's queue"])
def test_one_that_is_not_due_waits_in_the_ledger_and_not_in_a_workers_memory(elsewhere, queue):
    task = elsewhere.send("proj.add", 1, 2, queue=queue, countdown=2)
    wait_until(lambda: elsewhere.held(task), SOON, "it to be held")
    assert [one["what"] for one in elsewhere.held(task)] == ["scheduled"]
    elsewhere.runs_once(task)


def test_a_users_own_request_class_keeps_no_gpu_task_from_being_held(elsewhere):
    task = elsewhere.send("elsewhere.add_with_own_request", 1, 2, queue="celery")
    elsewhere.runs_once(task)
    assert [line for line in elsewhere.world.journal() if line["what"] == "own request" and line["task"] == task]


def test_a_task_that_is_no_gpu_task_runs_on_a_gpu_only_under_its_lease(elsewhere):
    task = elsewhere.send("elsewhere.no_gpu_task", queue=QUEUE)
    elsewhere.world.ends(task, "SUCCESS")
    (line,) = [line for line in elsewhere.world.journal() if line.get("task") == task]
    assert line["claim"]["gpu"] == f"{HOST}:0"


@pytest.mark.parametrize("queue", [QUEUE, "celery"], ids=["a GPU's queue", "a plain worker's queue"])
def test_one_that_cannot_be_held_fails_and_says_why(elsewhere, queue):
    task, message = elsewhere.raw("proj.add", 1, 2)
    message["properties"]["priority"] = 1000
    elsewhere.push(message, queue)
    error = elsewhere.world.ends(task, "FAILURE")
    assert "priority 1000" in str(error)
    assert elsewhere.world.runs(task) == []


# and none is lost


@contextmanager
def after(worker, put, hinder, allow):
    """The worker takes a message out of its queue when the ledger cannot hold it, which it can again later."""
    with frozen(worker):
        put()
        hinder()
    try:
        yield
    finally:
        allow()


def test_a_message_that_a_gpus_worker_took_while_the_ledger_could_not_write_is_held_when_it_can(elsewhere):
    """As on a server without memory: no script writes, and a queue can still be read."""
    client = elsewhere.world.client
    task, message = elsewhere.raw("proj.add", 1, 2)
    with after(
        elsewhere.gpu,
        lambda: elsewhere.push(message),
        lambda: client.config_set("maxmemory", "1"),
        lambda: client.config_set("maxmemory", "0"),
    ):
        elsewhere.gpu.wait_for_log("cannot be held now")
        assert not client.exists(QUEUE)
    elsewhere.runs_once(task)


def test_a_message_that_a_plain_worker_took_while_the_ledger_could_not_hold_it_is_held_when_it_can(elsewhere):
    task, message = elsewhere.raw("proj.add", 1, 2)
    with after(elsewhere.plain, lambda: elsewhere.push(message, "celery"), elsewhere.forbid, elsewhere.allow):
        elsewhere.plain.wait_for_log("cannot be held now")
        plain = elsewhere.world.app.send_task("proj.plain").id
        elsewhere.world.ends(plain, "SUCCESS")
    elsewhere.runs_once(task)


# the same message twice


@pytest.mark.parametrize("queue", [QUEUE, "celery"], ids=["a GPU's queue", "a plain worker's queue"])
def test_the_same_message_twice_runs_once(elsewhere, queue):
    task, message = elsewhere.raw("proj.add", 1, 2)
    elsewhere.push(message, queue)
    elsewhere.push(message, queue)
    elsewhere.runs_once(task)
    elsewhere.push(message, queue)  # and once more, when it has run
    marker = elsewhere.send("proj.add", 1, 2, queue=queue)
    elsewhere.runs_once(marker)
    elsewhere.runs_once(task)
    assert len(elsewhere.held(task)) == 1


@pytest.mark.parametrize("queue", [QUEUE, "celery"], ids=["a GPU's queue", "a plain worker's queue"])
def test_a_sender_that_publishes_a_task_id_twice_has_it_run_once(elsewhere, queue):
    """As kombu does by itself, where the connection was lost before the answer came."""
    world = elsewhere.world
    task = str(uuid.uuid4())
    for _ in range(2):
        elsewhere.send("proj.wait_for", task, task_id=task, queue=queue)
    world.started(task)
    marker = elsewhere.send("proj.add", 1, 2, queue=queue)
    wait_until(lambda: elsewhere.held(marker), SOON, "all of the queue to be seen")
    world.open(task)
    elsewhere.runs_once(marker)
    elsewhere.runs_once(task)


def test_a_message_that_was_restored_after_the_visibility_timeout_runs_once(elsewhere):
    """A plain worker that died after it held a message, and before it acknowledged it."""
    world = elsewhere.world
    task, message = elsewhere.raw("proj.wait_for", "restored")
    elsewhere.push(message, "celery")
    world.started(task)
    unacknowledged(world, message)
    wait_until(lambda: not world.client.exists("unacked"), SOON, "it to be restored, and taken again")
    wait_until(lambda: "came twice" in elsewhere.plain.log, SOON, "its copy to be dropped")
    world.open("restored")
    elsewhere.runs_once(task)
    assert len(elsewhere.held(task)) == 1


def test_a_message_that_is_restored_when_the_ledger_has_forgotten_it_runs_once(elsewhere):
    world = elsewhere.world
    task, message = elsewhere.raw("proj.add", 1, 2)
    elsewhere.push(message, "celery")
    elsewhere.runs_once(task)
    world.client.delete("gpu:ended")
    unacknowledged(world, message)
    elsewhere.plain.wait_for_log("was delivered again")
    elsewhere.runs_once(task)


def unacknowledged(world, message):
    """Kombu's own note of a message that a consumer took long ago and never acknowledged."""
    tag = message["properties"]["delivery_tag"]
    world.client.hset("unacked", tag, json.dumps([message, "", "celery"]))
    world.client.zadd("unacked_index", {tag: time.time() - 3600})


def test_an_expired_copy_revokes_nothing_that_runs(elsewhere):
    world = elsewhere.world
    task, message = elsewhere.raw("proj.wait_for", "expired")
    elsewhere.push(message, "celery")
    world.started(task)
    message["headers"]["expires"] = "2001-01-01T00:00:00+00:00"
    elsewhere.push(message, "celery")
    marker = elsewhere.send("proj.add", 1, 2, queue="celery")
    wait_until(lambda: elsewhere.held(marker), SOON, "the copy to be seen")
    world.open("expired")
    elsewhere.runs_once(task)


# what makes no sense


@pytest.mark.parametrize("body", [b"[1]", b"null", b'{"k": 1}'], ids=["a list", "null", "an object"])
def test_a_body_of_another_shape_ends_no_worker(elsewhere, body):
    _, message = elsewhere.raw("proj.add", 1, 2)
    elsewhere.push({**message, "body": base64.b64encode(body).decode()})
    following, good = elsewhere.raw("proj.add", 1, 2)
    elsewhere.push(good)
    elsewhere.runs_once(following)
    assert elsewhere.gpu.exit_code is None


@pytest.mark.parametrize("limits", [["a"], "ab", [1, 2, 3], {"hard": 1}], ids=str)
def test_time_limits_that_are_none_end_no_worker(elsewhere, limits):
    _, message = elsewhere.raw("proj.add", 1, 2, timelimit=limits)
    elsewhere.push(message)
    following, good = elsewhere.raw("proj.add", 1, 2)
    elsewhere.push(good)
    elsewhere.runs_once(following)
    assert elsewhere.gpu.exit_code is None
