"""What a GPU's worker took out of its queue on RabbitMQ past the ledger, when it stops and the ledger is away."""

import pytest
from celery import Celery
from celery.worker.request import Request
from kombu import Queue

from celery_gpulease import GPULease, GPUTask
from celery_gpulease.worker.gpu_worker import GPUWorker
from celery_gpulease.worker.strays import Strays
from tests.integration.test_strays import DEVICE, away

pytestmark = pytest.mark.xdist_group("rabbitmq")


@pytest.fixture
def app(rabbitmq):
    app = Celery("proj", broker=rabbitmq.url, backend="cache+memory://", set_as_current=False)
    app.conf.gpulease_redis_url = away().settings.redis_url
    GPULease(app)

    @app.task(base=GPUTask, name="proj.add", shared=False)
    def add(x, y):
        return x + y

    yield app
    app.close()


def taken(app):
    """The request of the first message of the GPU's queue, which is not there any more."""
    with app.connection_for_read() as connection:
        message = Queue(DEVICE.queue)(connection.default_channel).get(no_ack=True)
        assert message is not None, "the queue is empty"
        return Request(message, app=app, task=app.tasks["proj.add"])


@pytest.mark.parametrize("options", [{}, {"compression": "zlib", "priority": 3}, {"expires": 600, "reply_to": "me"}])
def test_it_goes_back_into_its_queue_as_it_came(app, rabbitmq, options, caplog):
    stranger = Celery("stranger", broker=rabbitmq.url, set_as_current=False)
    task = stranger.send_task("proj.add", (1, 2), queue=DEVICE.queue, **options).id
    stranger.close()
    before = taken(app)
    strays = Strays(GPUWorker(app.gpulease.ledger, DEVICE, ("default",), "gpu0@node7"))
    strays.add(before)
    strays.leave()
    assert "LOST" not in caplog.text
    after = taken(app)
    assert (after.id, after.args, after.expires) == (task, [1, 2], before.expires)
    assert {**after.message.headers, "compression": None} == {**before.message.headers, "compression": None}
    assert sent_with(after) == sent_with(before)


def sent_with(request):
    """Its properties, but how long RabbitMQ would keep it, which `expires` tells in the headers too."""
    left_out = ("application_headers", "expiration")
    return {name: value for name, value in request.message.properties.items() if name not in left_out}
