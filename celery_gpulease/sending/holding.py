"""The seam: every message of a GPU task is held whole at the one place where Celery sends.

`AMQP._create_task_sender` (celery/app/amqp.py) is that place: delay, apply_async, send_task, canvas, links, retry,
replace and beat all end there. Celery's own sender does its work (signals, events, policy), with a producer that holds
where kombu's would publish.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from celery.app.amqp import AMQP
from celery.app.task import Context
from kombu.compression import compress
from kombu.entity import maybe_delivery_mode
from kombu.serialization import dumps as dump_body

from celery_gpulease import events
from celery_gpulease.installed import installation
from celery_gpulease.model import RECONCILE_TASK
from celery_gpulease.sending.batch import BatchingProducer, Sending, is_of_a_group, producers
from celery_gpulease.sending.destination import destination
from celery_gpulease.sending.envelope import Finished, held
from celery_gpulease.sending.protocol import in_protocol_2
from celery_gpulease.sending.routes import HoldingRouter, shown_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from kombu.pools import ProducerPool

    from celery_gpulease.installed import Installation
    from celery_gpulease.model import Held
    from celery_gpulease.sending.destination import Destination

#: What kombu's publish takes beside the message's properties. `expiration` is the ledger's: it watches `expires`.
_NO_PROPERTIES: Final = frozenset(
    {
        *("exchange", "routing_key", "declare", "mandatory", "immediate", "expiration"),
        *("retry", "retry_policy", "timeout", "confirm_timeout"),
    }
)


class HoldingAMQP(AMQP):
    """Celery's AMQP, with a sender that holds GPU tasks."""

    _producer_pool: ProducerPool | None

    def _create_task_sender(self) -> Callable[..., Any]:
        return _sender(self.app, super()._create_task_sender())

    @property
    def producer_pool(self) -> Any:
        """The app's producers, which let a group's tasks go out together."""
        pool = self._producer_pool  # Celery empties it after a fork
        if pool is None:
            pool = self._producer_pool = producers[self.app.connection_for_write()]
            pool.limit = self.app.pool.limit
        return pool

    publisher_pool = producer_pool

    def Router(self, *args: Any, **options: Any) -> HoldingRouter:  # noqa: N802
        """The router of sent tasks."""
        return HoldingRouter(super().Router(*args, **options))


def holding(amqp_class: type) -> type:
    """The app's AMQP class, Celery's or the user's own, with a sender that holds GPU tasks.

    Over Celery's own it is a class that an app can be pickled with.
    """
    if amqp_class is AMQP:
        return HoldingAMQP
    pools = {name: getattr(amqp_class, name) for name in ("producer_pool", "publisher_pool")}
    own = {name: pool for name, pool in pools.items() if pool is not AMQP.producer_pool}
    return type("HoldingAMQP", (HoldingAMQP, amqp_class), own)


def _sender(app: Any, send: Callable[..., Any]) -> Callable[..., Any]:
    def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
        if name == RECONCILE_TASK:
            return wake_reconciler(installation(app))
        where = destination(app, name, message, options)
        if where is None:
            return send(producer, name, message, **options)
        if isinstance(message.body, dict):  # `task_protocol` is 1
            new = in_protocol_2(app.amqp, message.body)
            message = message._replace(headers={**new.headers, **message.headers}, body=new.body)
        holder = HoldingProducer(producer, installation(app), name, where)
        if message.sent_event:
            events.publish_held(app, producer, message.sent_event, where.pool, where.pin)
        return send(holder, name, message, queue=shown_queue(where.pool), **options)

    return send_task_message


def wake_reconciler(installed: Installation) -> None:
    """Sends the reconciler: a worker's listener serves it, and where none hears it, this process does.

    No message is queued: where only GPU workers run, nobody would consume it.
    """
    if not installed.ledger.wake("reconcile"):
        installed.reconcile()


class HoldingProducer:
    """Stands in for kombu's producer: the task's message is held, anything else (an event) is published."""

    def __init__(self, producer: Any, installed: Installation, name: str, where: Destination) -> None:
        self._producer, self._installed, self._name, self._where = producer, installed, name, where
        # one for all tries: HOLD is idempotent by it; of 20 characters, as many as Redis keeps in its smallest places
        self._ticket = secrets.token_urlsafe(15)
        self._is_held = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Holds the message that Celery's sender has finished.

        Raises:
            LedgerUnavailable: Redis does not answer, also after the retries that `retry_policy` asks for.
            Ignore: It was sent in place of a run that is lost.
        """
        if self._is_held:
            return self._producer.publish(body, **options)  # Celery's dispatcher keeps what cannot be sent now
        policy = options.get("retry_policy") if options.get("retry") else None
        request = _request_of(body, options) if self._installed.settings.track_held else None
        one = Sending(self._installed, self._held(body, **options), request, policy)
        batch = self._producer.lent if isinstance(self._producer, BatchingProducer) else None
        if batch is None:
            one.send()
        else:
            batch.send(one, is_of_a_group=is_of_a_group(options["headers"], body))
        self._is_held = True
        return None

    def _held(
        self,
        body: Any,
        headers: dict[str, Any],
        serializer: str | None = None,
        compression: str | None = None,
        delivery_mode: Any = None,
        priority: int | None = None,
        **options: Any,
    ) -> Held:
        content_type, encoding, data = dump_body(body, serializer=serializer or self._producer.serializer)
        if compression:
            data, headers["compression"] = compress(data, compression)
        properties = {name: value for name, value in options.items() if name not in _NO_PROPERTIES}
        properties["delivery_mode"] = maybe_delivery_mode(delivery_mode)
        properties["priority"] = priority or 0
        message = Finished(data, content_type, encoding, headers, properties)
        return held(self._installed.app, self._name, message, self._where, self._ticket)


def _request_of(body: Any, options: dict[str, Any]) -> Context:
    """What the result backend is told of the task."""
    args, kwargs, _ = body
    properties = {name: options.get(name) for name in ("reply_to", "correlation_id")}
    return Context(options["headers"], args=args, kwargs=kwargs, delivery_info={}, **properties)
