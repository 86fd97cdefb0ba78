"""The seam: every message of a GPU task is held whole at the one place where Celery sends.

`AMQP._create_task_sender` is that place: delay, apply_async, send_task, canvas, links, retry, replace and beat all end
there (facts/celery-lifecycle.md, 3a). Celery's own sender does its work (signals, events, policy), with a producer that
holds where kombu's would publish.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from celery.app.amqp import AMQP
from celery.app.task import Context
from celery.exceptions import Ignore
from celery.utils.log import get_logger
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.compression import compress
from kombu.entity import maybe_delivery_mode
from kombu.serialization import dumps as dump_body
from kombu.utils.encoding import str_to_bytes
from kombu.utils.functional import retry_over_time
from kombu.utils.json import dumps

from celery_gpulease import events, lease
from celery_gpulease.dispatch.revoking import see_to, stamp_names
from celery_gpulease.exceptions import ConfigurationError, LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.ledger.answers import Taken
from celery_gpulease.model import HEADER, PRIORITIES, RECONCILE_TASK, Held
from celery_gpulease.sending.destination import destination
from celery_gpulease.sending.protocol import in_protocol_2
from celery_gpulease.sending.routes import HoldingRouter, shown_queue
from celery_gpulease.sending.tracking import hold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_gpulease.installed import Installation
    from celery_gpulease.sending.destination import Destination

logger = get_logger(__name__)

#: The holes of a held message, which the claim fills (lua/include/message.lua). No JSON text contains them.
QUEUE_HOLE: Final = "\x01"
CLAIM_HOLE: Final = "\x02"
#: What kombu's publish takes beside the message's properties. `expiration` is the ledger's: it watches `expires`.
_NO_PROPERTIES: Final = frozenset(
    {
        *("exchange", "routing_key", "declare", "mandatory", "immediate", "expiration"),
        *("retry", "retry_policy", "timeout", "confirm_timeout"),
    }
)
#: What a transport puts among them, and a message says elsewhere, or the next transport anew.
_OF_TRANSPORTS: Final = frozenset(
    {
        *("application_headers", "content_type", "content_encoding", "expiration"),
        *("body_encoding", "delivery_info", "delivery_tag"),
    }
)


class HoldingAMQP(AMQP):
    """Celery's AMQP, with a sender that holds GPU tasks."""

    def _create_task_sender(self) -> Callable[..., Any]:
        return _sender(self.app, super()._create_task_sender())

    def Router(self, *args: Any, **options: Any) -> HoldingRouter:  # noqa: N802
        """The router of sent tasks."""
        return HoldingRouter(super().Router(*args, **options))


def holding(amqp_class: type) -> type:
    """The app's AMQP class, Celery's or the user's own, with a sender that holds GPU tasks.

    Over Celery's own it is a class that an app can be pickled with.
    """
    return HoldingAMQP if amqp_class is AMQP else type("HoldingAMQP", (HoldingAMQP, amqp_class), {})


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
        self._ticket = uuid.uuid4().hex  # one for all tries: HOLD is idempotent by it
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
        one = self._held(body, **options)
        answer = self._hold(one, _request_of(body, options), policy)
        if answer == "lost":
            message = "this run was lost: its retry or replacement is not sent"
            raise Ignore(message)
        self._is_held = True
        if answer == "revoked":
            end_revoked(self._installed, one)
        return None

    def _hold(self, held: Held, request: Context, policy: dict[str, Any] | None) -> str:
        args = (self._installed, held, request)
        if policy is None:
            return hold(*args)
        known = ("max_retries", "interval_start", "interval_step", "interval_max")
        steps = {name: policy[name] for name in known if policy.get(name) is not None}
        return str(retry_over_time(hold, LedgerUnavailable, args=args, **steps))

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


def end_revoked(installed: Installation, one: Held) -> None:
    """It was revoked before it was sent. What fails here is done by a worker: the task is held."""
    if one.run_ticket:  # the run has yet to store its RETRY: a worker waits for that
        return
    taken = Taken(one.ticket, one.task_id, one.task, has_run=False)
    try:
        trouble = see_to(installed.app, installed.ledger, [taken])
    except LedgerUnavailable as error:
        trouble = error
    if trouble:
        logger.warning("%s[%s] was revoked, which a GPU worker will store: %s", one.task, one.task_id, trouble)


def _request_of(body: Any, options: dict[str, Any]) -> Context:
    """What the result backend is told of the task."""
    args, kwargs, _ = body
    properties = {name: options.get(name) for name in ("reply_to", "correlation_id")}
    return Context(options["headers"], args=args, kwargs=kwargs, delivery_info={}, **properties)


@dataclass(frozen=True)
class Finished:
    """A message as Celery has finished it."""

    body: str | bytes
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]


def as_it_came(message: Any) -> Finished:
    """A message that a consumer has: decompressed, and without what is its transport's alone."""
    headers = dict(message.headers or {})
    headers.pop("compression", None)
    properties = own_properties(message.properties or {})
    return Finished(message.body, message.content_type, message.content_encoding, headers, properties)


def own_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that a message was sent with."""
    return {name: value for name, value in properties.items() if name not in _OF_TRANSPORTS}


def held(app: Any, name: str, message: Finished, where: Destination, ticket: str) -> Held:
    """Makes the message ready to be routed: two holes are left for the claim, and the ledger waits for the eta.

    A worker that saw the eta would wait a second time, and hold the lease meanwhile; it travels in our header.
    """
    headers = message.headers
    task_id, eta, hole = headers["id"], headers.get("eta"), uuid.uuid4().hex  # which nothing in the message contains
    header = {"ticket": ticket, "task": name, "pool": where.pool, "pin": where.pin or None, "eta": eta}
    envelope = {
        "body": base64.b64encode(str_to_bytes(message.body)).decode(),
        "content-encoding": message.content_encoding,
        "content-type": message.content_type,
        "headers": {**headers, "eta": None, HEADER: {**header, "claim": f"{hole}-claim"}},
        "properties": {
            **message.properties,
            "delivery_info": {"exchange": "", "routing_key": f"{hole}-queue"},
            "body_encoding": "base64",
            "delivery_tag": ticket,
        },
    }
    run = lease.current(task_id, installation(app).ledger)
    stamps = stamp_names(headers.get("stamps") or {}, headers.get("stamped_headers") or ())
    return Held(
        ticket=ticket,
        task_id=task_id,
        task=name,
        pool=where.pool,
        pin=where.pin,
        priority=checked_priority(message.properties.get("priority")),
        eta_ms=epoch_ms(app, eta),
        expires_ms=epoch_ms(app, headers.get("expires")),
        message=_with_holes(dumps(envelope), hole),
        stamps=dumps(stamps) if stamps else "",
        run_ticket=run.claim.ticket if run and run.claim else "",
        run_token=run.claim.token if run and run.claim else "",
    )


def _with_holes(text: str, hole: str) -> str:
    return text.replace(f"{hole}-queue", QUEUE_HOLE, 1).replace(f'"{hole}-claim"', CLAIM_HOLE, 1)


def checked_priority(priority: int | None) -> int:
    """A priority as the broker counts: none is 0, which Redis serves first and RabbitMQ last.

    Raises:
        ConfigurationError: It is none.
    """
    if priority is None:
        return 0
    if isinstance(priority, int) and not isinstance(priority, bool) and priority in PRIORITIES:
        return priority
    message = f"priority {priority!r}: a whole number from 0 to {PRIORITIES[-1]}"
    raise ConfigurationError(message)


def epoch_ms(app: Any, time: str | datetime | None) -> int:
    """The milliseconds of an eta or of expires, as Celery's headers have them; 0 for none."""
    if time is None:
        return 0
    moment = maybe_make_aware(maybe_iso8601(time), app.timezone)
    return int(moment.astimezone(timezone.utc).timestamp() * 1000)
