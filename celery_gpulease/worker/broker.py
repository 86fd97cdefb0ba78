"""The broker of a GPU's worker: which queue it consumes there, and what of it cannot work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kombu import Exchange, Queue

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.servers import redis_urls

if TYPE_CHECKING:
    from celery_gpulease.model import Device

#: Seconds until a broker that does not answer is an error: what Celery allows itself while it stops.
BROKER_TIMEOUT: Final = 5.0


def refuse_broker(app: Any, device: Device) -> None:
    """Refuses a broker (SQS) that must not be asked for other queues than the given ones, and has none for this GPU.

    Raises:
        ConfigurationError: `predefined_queues` lacks it.
    """
    given = app.conf.broker_transport_options.get("predefined_queues")
    if given and device.queue not in given:
        message = (
            f"broker_transport_options: its predefined_queues lack {device.queue!r}, the queue of GPU {device.id}; "
            "name it there, with the URL of a queue that nobody else consumes, or leave predefined_queues out"
        )
        raise ConfigurationError(message)


def consume_only(app: Any, device: Device) -> None:
    """Lets the worker consume its GPU's queue and no other, without broker acknowledgement.

    `select_add` would replace the exchange; one exchange per GPU would stay in RabbitMQ.
    """
    queues, name = app.amqp.queues, device.queue
    arguments = queues.new_missing(name).queue_arguments  # such as its type: whoever else declares it says the same
    queues[name] = Queue(name, Exchange(""), routing_key=name, no_ack=True, queue_arguments=arguments)
    queues.select([device.queue])


def ask_when_given(connection: Any, channel: Any, pool: Any) -> None:
    """Lets kombu ask Redis for the next message only when the pool's process has been given the last one.

    It would ask between the two, and the process wait for that. Celery's `worker_disable_prefetch` says it to kombu in
    the same way (celery/worker/consumer/tasks.py).
    """
    if connection.transport.driver_type != "redis":
        return
    can_consume = channel.qos.can_consume
    channel.qos.can_consume = lambda: not getattr(pool, "outbound_buffer", None) and can_consume()


def bound_broker(app: Any, heartbeat_interval: float) -> None:
    """Lets no broker be waited for without end, unless the user wants it so.

    Celery sets no timeout, and so hangs on its way out (`celery.worker.heartbeat.Heart.stop`, say) where the broker
    keeps the connection and does not answer. A connection that is lost by it ends no run.

    A half-open connection that kombu waits at for messages is dropped within three heartbeats, not in 51 seconds (its
    default, from kombu 5.7): while it lasts no claim is started, and its task would be given up by GPU after GPU.
    """
    app.conf.broker_transport_options = {**_timeouts(app, heartbeat_interval), **app.conf.broker_transport_options}


def outlast_refusals(app: Any) -> None:
    """Lets the worker go on when its Redis refuses to write for a while, as in a failover: by default Celery ends it.

    To Celery that is no lost connection but a "channel error", since the broker answers (`Consumer.start` in
    celery/worker/consumer/consumer.py). Here it loses nothing: the ledger remembers.
    """
    if redis_urls(app.conf.broker_read_url):
        app.conf.broker_channel_error_retry = True


def _timeouts(app: Any, heartbeat_interval: float) -> dict[str, float]:
    if redis_urls(app.conf.broker_read_url):
        return {"socket_timeout": BROKER_TIMEOUT, "health_check_interval": max(1.0, heartbeat_interval)}
    if app.connection_for_read().transport.driver_name == "py-amqp":
        return {"read_timeout": BROKER_TIMEOUT, "write_timeout": BROKER_TIMEOUT}
    return {}
