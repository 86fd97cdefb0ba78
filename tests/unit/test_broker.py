"""What a broker must let a GPU's worker do is looked at before anything is registered."""

from collections import deque
from types import SimpleNamespace

import pytest
from celery import Celery
from kombu import Connection

from celery_gpulease import ConfigurationError
from celery_gpulease.model import Device
from celery_gpulease.worker.broker import ask_when_given, consume_only, refuse_broker

DEVICE = Device("node7:0", 0, "node7")


def app_with(**conf):
    app = Celery("x", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    return app


def test_given_queues_without_the_gpus_are_refused_by_the_name_of_what_lacks():
    given = {"predefined_queues": {"celery": {"url": "https://sqs/1"}}}
    with pytest.raises(ConfigurationError, match=r"broker_transport_options.*predefined_queues lack 'gpu\.node7:0'"):
        refuse_broker(app_with(broker_transport_options=given), DEVICE)
    given["predefined_queues"]["gpu.node7:0"] = {"url": "https://sqs/2"}
    refuse_broker(app_with(broker_transport_options=given), DEVICE)
    refuse_broker(app_with(), DEVICE)


def test_the_gpus_queue_is_the_only_one_and_declared_as_celery_declares_others():
    app = app_with(task_queue_max_priority=9)
    consume_only(app, DEVICE)
    (queue,) = app.amqp.queues.consume_from.values()
    assert (queue.name, queue.exchange.name, queue.routing_key, queue.no_ack) == (
        "gpu.node7:0",
        "",
        "gpu.node7:0",
        True,
    )
    assert (queue.durable, queue.auto_delete, queue.queue_arguments) == (True, False, {"x-max-priority": 9})


@pytest.fixture
def channel():
    """As kombu makes one, in memory."""
    with Connection("memory://") as connection:
        yield connection.channel()


def test_the_next_message_is_asked_for_when_the_pools_process_has_the_last_one(channel):
    pool = SimpleNamespace(outbound_buffer=deque())
    ask_when_given(Connection("redis://"), channel, pool)
    assert channel.qos.can_consume()
    pool.outbound_buffer.append("a job")
    assert not channel.qos.can_consume()
    pool.outbound_buffer.clear()
    assert channel.qos.can_consume()


def test_where_the_pool_keeps_no_jobs_it_is_asked_for_as_ever(channel):
    ask_when_given(Connection("redis://"), channel, None)
    assert channel.qos.can_consume()


def test_another_broker_is_left_alone(channel):
    can_consume = channel.qos.can_consume
    ask_when_given(Connection("memory://"), channel, SimpleNamespace(outbound_buffer=deque()))
    assert channel.qos.can_consume == can_consume
