"""What monitors are told of the ledger: by one worker at a time, and never at the cost of what runs."""

import re
import socket

import pytest
from celery import Celery
from celery.worker.request import Request
from kombu import Connection, Queue

from celery_gpulease import GPULease, GPUTask
from celery_gpulease.events import LEDGER_NODE
from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.journal import PAGE, take_entries
from celery_gpulease.model import Claim, Device
from celery_gpulease.settings import Settings
from celery_gpulease.worker.gpu_worker import GPUWorker
from celery_gpulease.worker.request import gpu_request
from celery_gpulease.worker.telling import ASK_EVERY, LOOK_EVERY, Teller

JOURNAL = "gpu:journal"
CLAIM = Claim("ticket", "node7:0", "token", 1, 1)


@pytest.fixture
def app(redis_url):
    app = Celery("proj", broker=redis_url, backend="cache+memory://", set_as_current=False)
    app.conf.worker_send_task_events = True
    GPULease(app)

    @app.task(base=GPUTask, name="proj.add", shared=False)
    def add(x, y):
        return x + y

    take_entries(app.gpulease.ledger)  # the group begins with the present
    yield app
    app.close()


@pytest.fixture
def eventer(app):
    """Of a worker whose broker is away: `celery.worker.consumer.events` makes it so."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{one.getsockname()[1]}/0"
        yield app.events.Dispatcher(Connection(url), hostname="gpu0@node7", buffer_group=["task"])


def requeued(app, number):
    fields = {"what": "requeued", "gpu": "node7:0", "detail": "died"}
    for index in range(number):
        app.gpulease.ledger.client.xadd(JOURNAL, {**fields, "task_id": f"task-{index}"})


def started(app, eventer):
    """A worker's request, that starts under a claim."""
    stranger = Celery("stranger", broker=app.conf.broker_url, set_as_current=False)
    stranger.send_task("proj.add", (1, 2), queue="gpu.node7:0")
    stranger.close()
    gpu_worker = GPUWorker(app.gpulease.ledger, Device("node7:0", 0, "node7"), ("default",), "gpu0@node7")
    gpu_worker.tell_monitors = Teller(app.gpulease, "gpu0@node7").tell
    with app.connection_for_read() as connection:
        message = Queue("gpu.node7:0")(connection.default_channel).get(no_ack=True)
    return gpu_request(Request, gpu_worker, None)(message, app=app, task=app.tasks["proj.add"], eventer=eventer)


def kept(eventer):
    """What the worker sends when its broker is back."""
    return [*(event for event, _ in eventer._outbound_buffer), *eventer._group_buffer["task"]]


def test_one_worker_at_a_time_looks_at_the_journal(app):
    first, second = Teller(app.gpulease, "gpu0@node7"), Teller(app.gpulease, "gpu1@node7")
    assert [first.turn(), second.turn(), first.turn()] == [LOOK_EVERY, ASK_EVERY, LOOK_EVERY]
    app.gpulease.ledger.client.delete("gpu:turn:tell")  # its time is over
    assert [second.turn(), first.turn()] == [LOOK_EVERY, ASK_EVERY]


def test_a_turn_ends_by_itself(app):
    Teller(app.gpulease, "gpu0@node7").turn()
    assert app.gpulease.ledger.client.pttl("gpu:turn:tell") > 0


def test_workers_that_come_and_go_leave_no_name_in_the_journals_group(app):
    for name in ("gpu0@pod-1", "gpu0@pod-2"):
        Teller(app.gpulease, name).turn()
        app.gpulease.ledger.client.delete("gpu:turn:tell")
    assert len(app.gpulease.ledger.client.xinfo_consumers(JOURNAL, "events")) <= 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_journal_is_read_in_each_protocol_of_redis(app, redis_url, protocol):
    ledger = Ledger(Settings(redis_url=redis_url, redis_options={"protocol": protocol}))
    requeued(app, 2)
    assert [entry.task_id for entry in take_entries(ledger)] == ["task-0", "task-1"]
    assert take_entries(ledger) == []
    ledger.client.close()


def test_a_start_tells_first_what_was_requeued_in_one_line_with_its_claim(app, eventer):
    request = started(app, eventer)
    requeued(app, 1)
    request._tell_of_claim(CLAIM)
    assert [(event["type"], event["hostname"]) for event in kept(eventer)] == [
        ("task-requeued", LEDGER_NODE),
        ("task-claimed", "gpu0@node7"),
    ]


def test_a_start_asks_no_broker_that_is_away(app, eventer):
    app.conf.broker_write_url = eventer.connection.as_uri()
    request = started(app, eventer)
    requeued(app, 1)
    request._tell_of_claim(CLAIM)
    assert len(kept(eventer)) == 2


def test_a_start_tells_a_page_at_most(app):
    request = started(app, app.events.Dispatcher(app.connection_for_write(), buffer_group=["task"]))
    requeued(app, PAGE + 1)
    request._tell_of_claim(CLAIM)
    assert len(take_entries(app.gpulease.ledger)) == 1


def test_a_journal_that_cannot_be_read_keeps_no_task_from_its_run(app, eventer, caplog):
    request = started(app, eventer)
    app.gpulease.ledger.client.delete(JOURNAL)
    app.gpulease.ledger.client.set(JOURNAL, "of another type: an error, as where we may not read it")
    request._tell_of_claim(CLAIM)
    assert "Monitors are not told" in caplog.text
    assert [event["type"] for event in kept(eventer)] == ["task-claimed"]


def test_an_event_that_cannot_be_sent_is_logged_and_no_error(app, caplog):
    from celery_gpulease import events  # noqa: PLC0415

    app.conf.broker_connection_timeout = 0.1
    app.conf.broker_write_url = "redis://127.0.0.1:1/0"
    events.send(app, "task-requeued", uuid="a task")
    events._unsent.say(at_last=True)  # another test's may have been said just now
    assert re.search("Events that could not be sent: .* the last task-requeued of a task: ", caplog.text)
