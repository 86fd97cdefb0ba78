"""Any broker that Celery knows, with the leases in a Redis of their own: what is held, claimed and run is the same.

RabbitMQ first: one server and three workers, GPUs 0 and 1 and a plain one, serve most tests.
"""

import gc
import json
import os
import signal
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import celery
import pytest
from amqp.exceptions import PreconditionFailed
from celery import Celery
from kombu import Connection, Producer, Queue

from celery_gpulease.dispatch.revoking import cancel
from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.ledger.checks import inconsistencies
from celery_gpulease.ledger.views import gpu_rows
from tests.faults.conftest import world_on
from tests.faults.faults import Fault
from tests.faults.world import HOST, LONG, PROJECT, SOON, overlaps
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.xdist_group("rabbitmq"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex"),  # Celery's Redis backend, with a recent redis-py
]

#: Where the workers find their project, which adds tasks to the world's own.
PATH = os.pathsep.join([str(PROJECT), str(Path(__file__).parent / "project")])


class Lab:
    """A world on RabbitMQ whose leases are in a Redis beside it."""

    def __init__(self, rabbitmq, server_binary, folder):
        self._exit = ExitStack()
        self._exit.enter_context(pytest.MonkeyPatch.context()).setenv("GPULEASE_HOST", HOST)
        redis = self._exit.enter_context(EmbeddedServer(binary=server_binary))
        self.rabbitmq = rabbitmq
        conf = {"broker_url": rabbitmq.url, "gpulease_redis_url": redis.url, "broker_connection_timeout": 1}
        self.world = self._exit.enter_context(world_on(redis.url, folder, **conf))
        self.world.rabbitmq = rabbitmq
        workers = [self.start(0), self.start(1, "--gpu-pools", "other"), self.start_plain()]
        for worker in workers:
            worker.wait_for_log(" ready.")
        self.gpu0, self.gpu1, self.plain = workers
        self.until_alive(0)
        self.until_alive(1)

    def start(self, gpu, *options, **env):
        command = ("celery", "-A", "brokers", "worker", "--gpu", str(gpu), "-l", "info", *options)
        return self.world.processes.start(*command, name=f"gpu{gpu}", PYTHONPATH=PATH, **env)

    def start_plain(self):
        command = ("celery", "-A", "brokers", "worker", "-c", "1", "-n", "plain@node7", "-l", "info")
        return self.world.processes.start(*command, name="plain", PYTHONPATH=PATH)

    def until_alive(self, gpu):
        here = self.world.ledger.keys.here(f"{HOST}:{gpu}")
        wait_until(lambda: self.world.ledger.client.pubsub_numsub(here)[0][1], SOON, "a listener")

    def send(self, name, *args, **options):
        return self.world.app.send_task(name, args, **options).id

    def ticket_of(self, task):
        return next(iter(self.world.client.hkeys(f"gpu:task:{task}")))

    def row(self, gpu):
        return next(row for row in map(asdict, gpu_rows(self.world.ledger)) if row["id"] == f"{HOST}:{gpu}")

    def rest(self):
        """Everything has ended, nothing overlapped, and nothing is left in the ledger or in a queue of a GPU."""
        client = self.world.client
        assert overlaps(self.world.runs()) == []
        wait_until(lambda: not client.keys("gpu:ticket:*"), SOON, "all tickets to end")
        wait_until(lambda: not client.keys("gpu:lease:*"), SOON, "all leases to go")
        wait_until(lambda: not client.keys("gpu:routed:*"), SOON, "all messages to be taken")
        wait_until(lambda: not inconsistencies(self.world.ledger), SOON, "a consistent ledger")

    def close(self):
        gc.collect()  # an AsyncResult that goes says so to its backend, which must still be there
        self._exit.close()


@pytest.fixture(scope="module")
def _lab(rabbitmq, server_binary, tmp_path_factory):
    lab = Lab(rabbitmq, server_binary, tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@pytest.fixture
def lab(_lab):
    yield _lab
    _lab.rest()


@pytest.fixture
def channel(rabbitmq):
    with Connection(rabbitmq.url) as connection, connection.channel() as channel:
        yield channel


# -- RabbitMQ: the road of a task


def test_with_rabbitmq_gpu_tasks_run_one_at_a_time_under_their_leases(lab):
    tasks = [lab.world.send("add", 1, number) for number in range(20)]
    results = [lab.world.ends(task, "SUCCESS") for task in tasks]
    assert results == [1 + number for number in range(20)]
    assert {run.gpu for task in tasks for run in lab.world.runs(task)} == {f"{HOST}:0"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": 0},
        {"priority": 7, "delivery_mode": "transient"},
        {"compression": "gzip", "serializer": "json", "headers": {"x-trace": "abc"}},
        {"reply_to": "here", "correlation_id": "there"},
    ],
    ids=str,
)
def test_with_rabbitmq_a_gpu_task_sees_of_its_message_what_a_plain_one_does(lab, options):
    ours = lab.send("brokers.tell", "a", 1, **{"pool": "default", **options})
    plains = lab.send("brokers.tell_plainly", "a", 1, **options)
    assert lab.world.ends(ours, "SUCCESS") == lab.world.ends(plains, "SUCCESS")


def test_with_rabbitmq_9_is_served_first_and_none_last(lab):
    first = lab.world.send("wait_for", "nine")
    lab.world.started(first)
    sent = {priority: lab.world.send("add", 1, 1, priority=priority) for priority in (None, 3, 9, 4, 0)}
    bumped = lab.world.send("add", 1, 1)
    lab.world.ledger.bump(bumped, 8)
    rows = json.loads(lab.world.gpulease("pending", "--json").output)
    assert [(row["task_id"], row["priority"]) for row in rows] == [
        *((sent[9], 9), (bumped, 8), (sent[4], 4), (sent[3], 3), (sent[None], 0), (sent[0], 0)),
    ]
    lab.world.open("nine")
    lab.world.succeeds(first, bumped, *sent.values())
    ran = [run.task for run in lab.world.runs() if run.task in {bumped, *sent.values()}]
    assert ran == [row["task_id"] for row in rows]


def test_with_rabbitmq_a_task_that_asks_for_it_runs_once_more(lab):
    task = lab.send("brokers.reject_once", pool="default")
    assert lab.world.ends(task, "SUCCESS") == "accepted"
    retried = lab.world.send("retry_once", 0)
    assert lab.world.ends(retried, "SUCCESS") == 1
    assert [len(lab.world.runs(one)) for one in (task, retried)] == [2, 2]


def test_with_rabbitmq_a_cancelled_task_never_runs(lab):
    first = lab.world.send("wait_for", "cancel")
    lab.world.started(first)
    second = lab.world.send("add", 1, 1)
    assert cancel(lab.world.app, lab.world.ledger, [second])[1] is None
    lab.world.ends(second, "REVOKED")
    lab.world.open("cancel")
    lab.world.succeeds(first)


# -- RabbitMQ: messages from elsewhere


def test_what_is_put_into_rabbitmqs_queue_of_a_gpu_is_held_and_leased(lab):
    with Celery("other", broker=lab.rabbitmq.url, backend=lab.world.url, set_as_current=False) as other:
        tasks = [other.send_task("proj.add", (2, 3), queue=f"gpu.{HOST}:0").id for _ in range(5)]
        lab.world.succeeds(*tasks)
        assert {(run.gpu, run.fence > 0) for task in tasks for run in lab.world.runs(task)} == {(f"{HOST}:0", True)}
        assert lab.gpu0.log.count("is held for a GPU") == 5
        assert "came past the ledger" in lab.gpu0.log


def test_a_gpu_task_that_reached_a_plain_worker_by_rabbitmq_is_held_and_leased(lab):
    with Celery("other", broker=lab.rabbitmq.url, backend=lab.world.url, set_as_current=False) as other:
        task = other.send_task("proj.add", (2, 3), queue="celery").id
        lab.world.succeeds(task)
        assert [run.gpu for run in lab.world.runs(task)] == [f"{HOST}:0"]


def test_what_no_worker_understands_closes_no_channel(lab, channel):
    """RabbitMQ would: the queue is consumed without acknowledgement, and Celery rejects such messages."""
    queue = f"gpu.{HOST}:0"
    publish = Producer(channel, routing_key=queue).publish
    before = lab.gpu0.log.count("ready.")
    publish([[], {}, None], headers={"task": "proj.nowhere", "id": "x", "root_id": "x"})
    publish("hello", headers={})
    publish(b"{", content_type="application/json", content_encoding="utf-8", headers={"task": "proj.add", "id": "y"})
    publish(b"gz", content_type="application/json", headers={"task": "proj.add", "id": "z", "compression": "gzip"})
    wait_until(lambda: "unregistered task of type 'proj.nowhere'" in lab.gpu0.log, SOON, "the unknown task")
    lab.world.succeeds(lab.world.send("add", 1, 1))
    channel.queue_declare(queue, passive=True)
    assert lab.gpu0.log.count("ready.") == before
    assert "Connection to broker lost" not in lab.gpu0.log
    assert "Connection is closed but not by the user" not in lab.gpu0.log


# -- RabbitMQ: workers, control, beat


def test_with_rabbitmq_inspect_and_status_agree(lab):
    task = lab.world.send("wait_for", "inspect")
    lab.world.started(task)
    inspect = lab.world.app.control.inspect(["gpu0@node7"], timeout=SOON, limit=1)
    assert [one["id"] for one in inspect.active()["gpu0@node7"]] == [task]
    assert [queue["name"] for queue in inspect.active_queues()["gpu0@node7"]] == [f"gpu.{HOST}:0"]
    assert lab.row(0)["task_id"] == task
    lab.world.open("inspect")
    lab.world.succeeds(task)


def test_with_rabbitmq_beat_wakes_a_worker_to_reconcile(lab):
    """Nothing is queued: with GPU workers alone nobody would consume it."""
    schedule = str(lab.world.folder / "beat")
    beat = lab.world.processes.start("celery", "-A", "proj", "beat", "-s", schedule, "-l", "info", name="beat")
    told = lab.world.client.pubsub()
    told.subscribe(*[lab.world.ledger.keys.here(f"{HOST}:{gpu}") for gpu in (0, 1)])
    wait_until(lambda: (told.get_message(timeout=1) or {}).get("data") == "reconcile", LONG, "a wake-up")
    told.close()
    beat.close()


def test_with_rabbitmq_what_was_routed_to_a_worker_that_stops_goes_to_another(lab):
    """It is in that worker's hands already, but has not started."""
    stuck = lab.start(2, "--gpu-pools", "stop", TEST_RECEIVED_GATE="received")
    stuck.wait_for_log(" ready.")
    lab.until_alive(2)
    task = lab.world.send("add", 1, 1, pool="stop")
    wait_until(lambda: lab.world.client.hget(f"gpu:claim:{HOST}:2", "state") == "claimed", SOON, "the claim")
    wait_until(lambda: not lab.world.client.exists(f"gpu:routed:{HOST}:2"), SOON, "the worker to take it")
    stuck.send(signal.SIGTERM)
    wait_until(lambda: lab.world.client.zscore("gpu:pending:stop", lab.ticket_of(task)), SOON, "it to go back")
    lab.world.open("received")
    assert stuck.wait() == 0
    heir = lab.start(3, "--gpu-pools", "stop")
    lab.world.succeeds(task)
    assert [run.gpu for run in lab.world.runs(task)] == [f"{HOST}:3"]
    heir.send(signal.SIGTERM)
    assert heir.wait() == 0


@pytest.mark.long
def test_while_rabbitmq_is_away_what_runs_goes_on_what_is_sent_waits_and_no_gpu_is_given_work(lab):
    running = lab.world.send("wait_for", "away")
    fence = lab.world.started(running).fence
    lab.rabbitmq.kill()
    try:
        wait_until(lambda: lab.row(1)["state"] == "offline", LONG, "GPU 1 to take no work")
        waiting = [lab.world.send("add", 1, 1), lab.world.send("add", 1, 1, pool="other")]
        beats = lab.world.client.zscore("gpu:deadlines", f"{HOST}:0")
        wait_until(lambda: lab.world.client.zscore("gpu:deadlines", f"{HOST}:0") > beats, SOON, "a heartbeat")
        assert lab.row(0)["fence"] == fence
        assert lab.world.runs(waiting[0]) == lab.world.runs(waiting[1]) == []
    finally:
        lab.rabbitmq.start()
    lab.world.succeeds(waiting[1])
    lab.world.open("away")
    lab.world.succeeds(running, waiting[0])
    assert [len(lab.world.runs(task)) for task in (running, *waiting)] == [1, 1, 1]
    assert lab.row(0)["state"] == lab.row(1)["state"] == "free"


@pytest.mark.long
@pytest.mark.parametrize("fault", [Fault.RABBITMQ_KILLED, Fault.RABBITMQ_RESTARTED, Fault.RABBITMQ_BLOCKED])
def test_whatever_befalls_rabbitmq_nothing_is_lost_and_nothing_runs_twice(lab, fault):
    """Sending needs the ledger only; what ends meanwhile stores its end, and what waits runs in the end."""
    gate = fault.name
    running = lab.world.send("wait_for", gate)
    lab.world.started(running)
    before = [lab.world.send("add", 1, 1) for _ in range(3)]
    with fault.during(lab.world):
        meanwhile = [lab.world.send("add", 1, 1, **more) for more in ({}, {"pool": "other"}, {"countdown": 1})]
        lab.world.open(gate)
        lab.world.succeeds(running)
    lab.world.succeeds(*before, *meanwhile)
    assert [len(lab.world.runs(task)) for task in (running, *before, *meanwhile)] == [1] * 7


@pytest.mark.long
def test_a_task_that_is_longer_than_rabbitmqs_consumer_timeout_runs_once(lab, rabbitmq):
    """It closes the channel of a consumer that holds a message for so long: a GPU's worker holds none."""
    with Fault.RABBITMQ_HURRIES.during(lab.world):
        worker = lab.start(5, "--gpu-pools", "hurried")
        worker.wait_for_log(" ready.")
        lab.until_alive(5)
        running = lab.world.send("wait_for", "hurried", pool="hurried")
        lab.world.started(running)
        hold_a_message_until_its_channel_is_closed(rabbitmq)
        lab.world.open("hurried")
        lab.world.succeeds(running, lab.world.send("add", 1, 1, pool="hurried"))
    assert len(lab.world.runs(running)) == 1
    assert "Connection to broker lost" not in worker.log
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def hold_a_message_until_its_channel_is_closed(rabbitmq):
    with Connection(rabbitmq.url) as connection, connection.channel() as channel:
        queue = Queue("held", channel=channel)
        queue.declare()
        Producer(channel, routing_key="held").publish("hello")
        assert queue.get(no_ack=False) is not None
        with pytest.raises(PreconditionFailed, match="timeout"):
            connection.drain_events(timeout=LONG)


@pytest.mark.long
@pytest.mark.skipif(celery.VERSION < (5, 5), reason="Celery 5.5 brought the setting")
def test_with_quorum_queues_as_the_default_a_gpu_is_served_all_the_same(lab):
    conf = {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum", **lab.world.conf}
    conf |= {"task_default_queue": "quorum", "gpulease_key_prefix": "quorum:"}
    worker = lab.start(4, TEST_CONF=json.dumps(conf))
    worker.wait_for_log(" ready.")
    with Celery("quorum", broker=lab.rabbitmq.url, backend=lab.world.url, set_as_current=False) as other:
        other.conf.update(task_create_missing_queue_type="quorum")
        tasks = [other.send_task("proj.add", (2, 3), queue=f"gpu.{HOST}:4").id for _ in range(3)]
        lab.world.succeeds(*tasks)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


# -- other brokers


def test_a_broker_in_another_database_of_the_same_redis(redis_url, tmp_path, monkeypatch):
    check_a_broker(redis_url, tmp_path, monkeypatch, redis_url.removesuffix("0") + "5")


@pytest.mark.long
def test_a_broker_that_is_another_redis(redis_url, own_server, tmp_path, monkeypatch):
    check_a_broker(redis_url, tmp_path, monkeypatch, own_server.url)


@pytest.mark.long
def test_a_broker_in_files(redis_url, tmp_path, monkeypatch):
    folder = str(tmp_path / "broker")
    options = {"data_folder_in": folder, "data_folder_out": folder, "control_folder": folder}
    Path(folder).mkdir()
    check_a_broker(redis_url, tmp_path, monkeypatch, "filesystem://", broker_transport_options=options)


@pytest.mark.long
def test_a_broker_in_the_workers_own_memory(redis_url, tmp_path, monkeypatch):
    """No message of a GPU task needs a broker; only remote control ends at the process."""
    check_a_broker(redis_url, tmp_path, monkeypatch, "memory://")


def check_a_broker(redis_url, folder, monkeypatch, broker, **conf):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    conf |= {"broker_url": broker, "gpulease_redis_url": redis_url}
    with world_on(redis_url, folder, **conf) as world:
        worker = world.worker(0)
        first = world.send("wait_for", "go")
        others = [world.send("add", 1, 1, priority=priority) for priority in (5, 3)]
        world.started(first)
        world.open("go")
        world.succeeds(first, *others)
        ran = [run.task for run in world.runs()]
        assert ran == [first, *(reversed(others) if broker.startswith("redis") else others)]
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        world.rest()
