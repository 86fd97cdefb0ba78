"""States and events: HELD, and what monitors see, among them the real Flower, which knows nothing of this package."""

import json
import socket
import threading
import time
import urllib.request
import uuid
from contextlib import suppress
from urllib.error import HTTPError, URLError

import pytest
from celery.events.state import State

from celery_gpulease.dispatch.revoking import cancel
from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.events import LEDGER_NODE
from celery_gpulease.ledger.checks import inconsistencies
from tests.faults.conftest import world_on
from tests.faults.world import HOST, LONG, SOON, kill
from tests.waiting import wait_until

pytest.importorskip("flower", reason="the dev extra brings Flower")
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's result backend

WORKER = f"gpu0@{HOST}"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Monitor(threading.Thread):
    """Celery's own, in this process: all events, and the state that it makes of them."""

    def __init__(self, app):
        super().__init__(daemon=True)
        self.app, self.events, self.state = app, [], State()
        self.is_over = False

    def run(self):
        with self.app.connection_for_read() as connection:
            receiver = self.app.events.Receiver(connection, handlers={"*": self.on_event})
            while not self.is_over:
                with suppress(TimeoutError):
                    receiver.capture(limit=None, timeout=0.5, wakeup=False)

    def on_event(self, event):
        self.state.event(dict(event))
        self.events.append(event)

    def kinds(self, task):
        return [one["type"] for one in list(self.events) if one.get("uuid") == task]

    def first(self, task, kind):
        return next((one for one in list(self.events) if one.get("uuid") == task and one["type"] == kind), None)


class Watched:
    """A GPU's worker with events, and those who watch it."""

    def __init__(self, world):
        self.world = world
        self.monitor = Monitor(world.app)
        self.monitor.start()
        start, port = world.processes.start, free_port()
        self.address = f"http://127.0.0.1:{port}"
        options = ("--address=127.0.0.1", f"--port={port}", "--inspect-timeout=2000")
        self.flower = start(
            *("celery", f"--broker={world.url}", "flower", *options), name="flower", FLOWER_UNAUTHENTICATED_API="true"
        )
        self.dump = start("celery", "-A", "proj", "events", "--dump", name="events")
        self.worker = world.processes.worker("proj", 0, "-E")
        wait_until(lambda: "starting capture" in self.dump.output, LONG, "celery events")
        wait_until(lambda: self.ask("/api/workers?refresh=1").get(WORKER), LONG, f"Flower: {self.flower!r}")
        world.until_free(0)

    def ask(self, path):
        """What Flower's HTTP API answers; nothing where it does not yet."""
        try:
            with urllib.request.urlopen(self.address + path, timeout=10) as answer:
                return json.load(answer)
        except (HTTPError, URLError, ConnectionError, TimeoutError):
            return {}

    def flower_says(self, task, state):
        def said():
            return self.ask(f"/api/task/info/{task}").get("state") == state

        wait_until(said, SOON, f"Flower to say {state} of {task}, of which it says {self.ask('/api/tasks')}")

    def all_say(self, task, state):
        """Flower, `celery events` and Celery's own State agree."""
        self.world.wait(lambda: task in self.monitor.state.tasks, SOON, task)
        found = self.monitor.state.tasks[task]
        wait_until(lambda: found.state == state, SOON, f"{state}, after {self.monitor.kinds(task)}: {found.state}")
        self.flower_says(task, state)

    def blocked(self, gate):
        """The GPU is busy until the gate opens."""
        blocker = self.world.send("wait_for", gate)
        self.world.started(blocker)
        return blocker


@pytest.fixture(scope="module")
def watched(server_binary, tmp_path_factory):
    settings = {"gpulease_track_held": True, "task_send_sent_event": True, "worker_send_task_events": True}
    with (
        pytest.MonkeyPatch.context() as patch,
        EmbeddedServer(binary=server_binary) as server,
        world_on(server.url, tmp_path_factory.mktemp("states"), **settings) as world,
    ):
        patch.setenv("GPULEASE_HOST", HOST)
        watched = Watched(world)
        yield watched
        watched.monitor.is_over = True
        watched.monitor.join()


@pytest.fixture(autouse=True)
def at_rest(watched):
    """Nothing is left of a test."""
    yield
    wait_until(lambda: not watched.world.client.keys("gpu:ticket:*"), SOON, "all tickets to end")
    wait_until(lambda: not inconsistencies(watched.world.ledger), SOON, "a consistent ledger")


# gpulease_track_held


def test_a_task_is_held_then_started_then_has_its_own_end(watched):
    world = watched.world
    watched.blocked("states")
    task = world.send("wait_for", "end")
    result = world.app.AsyncResult(task)
    assert (result.state, result.info) == ("HELD", {"pool": "default", "position": 1})
    world.open("states")
    world.started(task)
    wait_until(lambda: result.state == "STARTED", SOON, "it to be STARTED")
    world.open("end")
    world.succeeds(task)


def test_held_is_never_stored_over_the_state_of_a_task_that_runs_at_once(watched):
    tasks = [watched.world.send("add", 1, 2) for _ in range(20)]
    watched.world.succeeds(*tasks)
    wait_until(lambda: not watched.world.client.keys("gpu:ticket:*"), SOON, "all tickets to end")
    assert {watched.world.state(task) for task in tasks} == {"SUCCESS"}


def test_a_retry_that_is_held_is_retry(watched):
    world = watched.world
    task = world.send("retry_once", 2)
    states = set()

    def has_ended():
        states.add(world.state(task))
        return world.state(task) == "SUCCESS"

    wait_until(has_ended, LONG, "its end")
    assert "RETRY" in states
    assert [run.facts["retries"] for run in world.runs(task)] == [0, 1]


def test_a_sender_that_cannot_know_that_a_result_is_ignored_leaves_no_held_behind(watched):
    world = watched.world
    task = world.app.send_task("proj.ignore", pool="default").id
    wait_until(lambda: world.runs(task) and world.runs(task)[0].end, SOON, "its run")
    wait_until(lambda: world.state(task) == "PENDING", SOON, "no state, as in plain Celery")


# events


def test_celerys_events_come_as_always_and_ours_besides(watched):
    world, monitor = watched.world, watched.monitor
    task = world.send("add", 1, 2)
    world.succeeds(task)
    wait_until(lambda: {"task-sent", "task-succeeded"} <= {*monitor.kinds(task)}, SOON, "all events")
    kinds = [*monitor.kinds(task)]
    kinds.remove("task-sent")  # the sender tells it afterwards, as in plain Celery
    assert kinds == ["task-held", "task-received", "task-claimed", "task-started", "task-succeeded"]
    held, claimed = monitor.first(task, "task-held"), monitor.first(task, "task-claimed")
    assert (held["hostname"], held["pool"], held["gpu"]) == (LEDGER_NODE, "default", None)
    assert (claimed["hostname"], claimed["gpu"], claimed["delivery"]) == (WORKER, f"{HOST}:0", 1)
    assert claimed["fence"] == world.runs(task)[0].fence


def test_flower_shows_gpu_workers_and_tasks_in_all_states(watched):
    world = watched.world
    blocker = watched.blocked("flower")
    held, revoked = world.send("add", 1, 2), world.send("add", 1, 2)
    watched.all_say(blocker, "STARTED")
    watched.all_say(held, "HELD")
    cancel(world.app, world.ledger, [revoked])
    watched.all_say(revoked, "REVOKED")
    world.open("flower")
    watched.all_say(held, "SUCCESS")
    watched.all_say(blocker, "SUCCESS")
    failed = world.send("fail")
    watched.all_say(failed, "FAILURE")
    terminated = watched.blocked("never")
    world.app.control.revoke(terminated, terminate=True)
    watched.all_say(terminated, "REVOKED")
    retried = world.send("retry_once", 0)
    watched.all_say(retried, "SUCCESS")
    assert "task-retried" in watched.monitor.kinds(retried)
    assert watched.ask("/api/workers")[WORKER]["active_queues"][0]["name"] == f"gpu.{HOST}:0"
    tasks = watched.ask("/api/tasks")
    assert {tasks[task]["worker"] for task in (blocker, held, failed, terminated)} == {WORKER}


def test_a_task_that_was_revoked_before_it_was_sent_is_revoked_in_all_monitors(watched):
    world, task = watched.world, str(uuid.uuid4())
    list(world.ledger.cancel_each([task], revoked=True))
    world.send("add", 1, 2, task_id=task)
    wait_until(lambda: {"task-sent", "task-revoked"} <= {*watched.monitor.kinds(task)}, SOON, "all events")
    watched.all_say(task, "REVOKED")
    kinds = watched.monitor.kinds(task)
    assert kinds.index("task-held") < kinds.index("task-revoked")
    assert watched.monitor.first(task, "task-revoked")["state"] == "REVOKED"
    assert world.state(task) == "REVOKED"


def test_a_task_that_goes_back_to_the_line_is_requeued_and_claimed_again(watched):
    world = watched.world
    task = watched.blocked("requeue")
    kill(world.started(task).pid)
    world.started(task, 2)
    watched.all_say(task, "STARTED")
    world.open("requeue")
    watched.all_say(task, "SUCCESS")
    told = [kind for kind in watched.monitor.kinds(task) if kind in ("task-requeued", "task-claimed")]
    assert told == ["task-claimed", "task-requeued", "task-claimed"]
    requeued = watched.monitor.first(task, "task-requeued")
    assert (requeued["hostname"], requeued["gpu"]) == (LEDGER_NODE, f"{HOST}:0")
    claims = [one for one in watched.monitor.events if (one.get("uuid"), one["type"]) == (task, "task-claimed")]
    assert [one["delivery"] for one in claims] == [1, 2]


def test_senders_are_no_workers_in_any_monitor(watched):
    world = watched.world
    world.succeeds(world.send("add", 1, 2))
    wait_until(lambda: WORKER in watched.monitor.state.workers, SOON, "the worker")
    assert set(watched.monitor.state.workers) == {WORKER, LEDGER_NODE}
    assert set(watched.ask("/api/workers?refresh=1")) == {WORKER}


def test_celery_events_prints_them_all(watched):
    world = watched.world
    task = world.send("add", 1, 2)
    world.succeeds(task)

    def printed():
        lines = [line for line in watched.dump.output.splitlines() if task in line]
        return [
            word for word in ("task held", "task claimed", "task started", "task succeeded") if words_in(lines, word)
        ]

    wait_until(lambda: len(printed()) == 4, SOON, f"all of them in {watched.dump!r}")


def words_in(lines, words):
    return any(words in line for line in lines)


def test_a_monitor_may_switch_the_events_on(watched):
    """As Flower does: `-E` is not needed."""
    world = watched.world
    world.app.control.disable_events()
    task = world.send("add", 1, 2)
    world.succeeds(task)
    deadline = time.monotonic() + SOON
    world.app.control.enable_events()
    while "task-claimed" not in watched.monitor.kinds(task) and time.monotonic() < deadline:
        task = world.send("add", 1, 2)
        world.succeeds(task)
    assert "task-claimed" in watched.monitor.kinds(task)
