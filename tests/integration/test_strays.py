"""What a worker took past the ledger: on a GPU's, when it stops and the ledger is away, and on a plain one."""

import logging
import re
import socket
import threading
import uuid

import pytest
from celery import Celery
from celery.worker import state as worker_state
from celery.worker.request import Request
from kombu import Queue
from kombu.common import QoS

from celery_gpulease import GPULease, GPUTask
from celery_gpulease.ledger import Ledger
from celery_gpulease.model import Device
from celery_gpulease.sending.stray import StrayRequest, hold_stray
from celery_gpulease.settings import RETRY_EVERY, Settings
from celery_gpulease.throttled import EVERY
from celery_gpulease.worker import strays as module
from celery_gpulease.worker.gpu_worker import GPUWorker
from celery_gpulease.worker.plain import stray_request
from celery_gpulease.worker.strays import PlainStrays, Strays

# Celery's result backends leave their sockets to the garbage collector, and use what redis-py deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

SOON = 10.0
DEVICE = Device("node7:0", 0, "node7")


def app_on(url, **conf):
    app = Celery("proj", broker=url, backend=url, set_as_current=False)
    app.conf.update(conf)
    GPULease(app)

    @app.task(base=GPUTask, name="proj.add", shared=False)
    def add(x, y):
        return x + y

    return app


@pytest.fixture
def app(redis_url):
    app = app_on(redis_url)
    yield app
    app.close()


@pytest.fixture
def strays(redis_url):
    return Strays(GPUWorker(away(), DEVICE, ("default",), "gpu0@node7"))


def away():
    """A ledger whose server does not answer."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    return Ledger(Settings(redis_url=f"redis://127.0.0.1:{port}/0"))


def taken(app):
    """The request of the first message of the GPU's queue, which is not there any more."""
    with app.connection_for_read() as connection:
        message = Queue(DEVICE.queue)(connection.default_channel).get(no_ack=True)
        return Request(message, app=app, task=app.tasks["proj.add"])


def sent(app, redis_url, **options):
    stranger = Celery("stranger", broker=redis_url, set_as_current=False)
    task = stranger.send_task("proj.add", (1, 2), queue=DEVICE.queue, **options).id
    stranger.close()
    return task


def test_it_is_held_where_the_ledger_is_there(app, strays, redis_url):
    task = sent(app, redis_url)
    strays.add(taken(app))
    strays.leave()
    assert app.gpulease.ledger.client.exists(f"gpu:task:{task}")


@pytest.mark.parametrize("options", [{}, {"compression": "zlib", "priority": 3}])
def test_it_goes_back_into_its_queue_as_it_came(app, strays, redis_url, options):
    task = sent(app, redis_url, **options)
    before = taken(app)
    app.gpulease.__dict__["ledger"] = away()
    strays.add(before)
    strays.leave()
    after = taken(app)
    assert after.id == task
    assert (after.args, after.kwargs, after.delivery_info["priority"]) == ([1, 2], {}, options.get("priority", 0))
    assert {**after.message.headers, "compression": None} == {**before.message.headers, "compression": None}


def test_where_the_broker_is_away_too_the_log_has_all_that_is_needed_to_send_it_again(strays, redis_url, caplog):
    app = app_on(redis_url, broker_write_url=away().settings.redis_url)
    app.gpulease.__dict__["ledger"] = away()
    task = sent(app, redis_url)
    strays.add(taken(app))
    with caplog.at_level(logging.CRITICAL):
        strays.leave()
    assert task in caplog.text
    assert "is LOST" in caplog.text
    assert "[[1, 2]" in caplog.text
    app.close()


def test_a_hold_that_outlasts_the_stop_costs_no_message(app, strays, redis_url, monkeypatch):
    """The thread is still at the first, the ledger answers again, and the worker that stops sees to all of them."""
    tasks = [sent(app, redis_url) for _ in range(3)]
    entered, gate, held = threading.Semaphore(0), threading.Semaphore(0), []

    def hold(request, gpu):
        if threading.current_thread() is strays:
            entered.release()
            gate.acquire()
        elif not held:  # the thread comes to its next one meanwhile
            gate.release()
            entered.acquire(timeout=SOON)
        held.append(request.id)

    monkeypatch.setattr(module, "hold_stray", hold)
    monkeypatch.setattr(module, "LONGEST_HOLD", 0.1)
    for _ in tasks:
        strays.add(taken(app))
    strays.start()
    assert entered.acquire(timeout=SOON)
    strays.leave()
    came_back = []
    with app.connection_for_read() as connection:
        queue = Queue(DEVICE.queue)(connection.default_channel)
        while message := queue.get(no_ack=True):
            came_back.append(message.headers["id"])
    assert {*held, *came_back} == {*tasks}
    gate.release()
    strays.join(SOON)
    assert not strays.is_alive(), "it takes nothing more up"


def test_what_was_revoked_before_it_came_ends_at_once(app, redis_url, caplog):
    """No worker hears of it here: so this process stores the end."""
    task = str(uuid.uuid4())
    list(app.gpulease.ledger.cancel_each([task], revoked=True))
    sent(app, redis_url, task_id=task)
    with caplog.at_level(logging.INFO):
        hold_stray(taken(app), DEVICE.id)
    assert app.AsyncResult(task).state == "REVOKED"
    assert f"proj.add[{task}] is revoked" in caplog.text


@pytest.mark.parametrize("is_left", [False, True])
def test_thousands_are_warned_of_once_and_then_by_their_number(app, redis_url, caplog, is_left):
    strays = Strays(GPUWorker(app.gpulease.ledger, DEVICE, ("default",), "gpu0@node7"))
    tasks = [sent(app, redis_url) for _ in range(20)]
    for _ in tasks:
        strays.add(taken(app))
    assert is_left or 0 < strays.turn() <= EVERY
    strays.leave()
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    numbers = [re.search(r"came past the ledger, and are held now: (\d+)", one)[1] for one in said]
    assert numbers == ["1", "19"]
    assert tasks[-1] in said[-1]


# on a plain worker, whose broker keeps it until it is acknowledged


class Consumer:
    """As much of Celery's as the line of strays sees."""

    def __init__(self):
        self.connect()

    def connect(self):
        self.qos = QoS(lambda **_: None, 4)


@pytest.fixture
def consumer():
    return Consumer()


@pytest.fixture
def line(consumer):
    return PlainStrays(consumer)


@pytest.fixture
def message(app, redis_url):
    """One that a plain worker has taken, and not acknowledged."""
    sent(app, redis_url)
    with app.connection_for_read() as connection:
        yield Queue(DEVICE.queue)(connection.default_channel).get()


def asked(app, line, message):
    """Celery's loop has asked whether it is revoked."""
    Request = stray_request(StrayRequest, line.add)  # noqa: N806
    request = Request(message, app=app, task=app.tasks["proj.add"], on_ack=lambda *_: message.ack())
    assert request.revoked()
    return request


def is_held(app, request):
    return bool(app.gpulease.ledger.client.exists(f"gpu:task:{request.id}"))


def test_a_plain_workers_loop_asks_no_ledger_and_a_thread_does(app, consumer, line, message):
    there, app.gpulease.__dict__["ledger"] = app.gpulease.ledger, away()
    request = asked(app, line, message)
    assert consumer.qos.value == 5, "it hinders no other"
    assert line.turn() == RETRY_EVERY
    app.gpulease.__dict__["ledger"] = there
    assert line.turn() is None
    assert (is_held(app, request), message.acknowledged) == (True, False)
    line.end_all()
    assert (message.acknowledged, consumer.qos.value) == (True, 4)


def test_what_came_by_a_lost_connection_is_left_to_the_next_delivery(app, consumer, line, message):
    request = asked(app, line, message)
    consumer.connect()
    assert line.turn() is None
    line.end_all()
    assert (is_held(app, request), message.acknowledged, consumer.qos.value) == (False, False, 4)


def test_a_connection_that_is_lost_after_the_hold_costs_the_next_one_no_prefetch(app, consumer, line, message):
    request = asked(app, line, message)
    line.turn()
    consumer.connect()
    line.end_all()
    assert (is_held(app, request), message.acknowledged, consumer.qos.value) == (True, False, 4)


def test_what_a_plain_workers_loop_was_told_to_revoke_is_not_held(app, consumer, line, message):
    worker_state.revoked.add(message.headers["id"])
    request = asked(app, line, message)
    line.turn()
    line.end_all()
    assert (is_held(app, request), message.acknowledged, consumer.qos.value) == (False, True, 4)
    assert app.AsyncResult(request.id).state == "REVOKED"
