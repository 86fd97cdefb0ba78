"""A task's finished message, made ready to be held and routed, and read back."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.message import Message
from kombu.utils.encoding import str_to_bytes
from kombu.utils.json import dumps, loads

from celery_gpulease import lease
from celery_gpulease.dispatch.revoking import stamp_names
from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.installed import installation
from celery_gpulease.model import CLAIM_HOLE, HEADER, PRIORITIES, QUEUE_HOLE, Held, unique

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_gpulease.sending.destination import Destination

#: What a transport puts among a message's properties, and a message says elsewhere, or the next transport anew.
_OF_TRANSPORTS: Final = frozenset(
    {
        *("application_headers", "content_type", "content_encoding", "expiration"),
        *("body_encoding", "delivery_info", "delivery_tag"),
    }
)


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
    task_id, eta, hole = headers["id"], headers.get("eta"), unique()  # which nothing in the message contains
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


def read_envelope(text: str, accept: Any) -> Message:
    """The message as a worker's consumer would have it.

    Args:
        text: As the ledger has routed it.
        accept: The content types that may be read.
    """
    envelope = loads(text)
    properties = envelope["properties"]
    return Message(
        body=base64.b64decode(envelope["body"]),
        content_type=envelope["content-type"],
        content_encoding=envelope["content-encoding"],
        headers=envelope["headers"],
        properties=own_properties(properties),
        delivery_info={**properties["delivery_info"], "redelivered": False},
        delivery_tag=properties["delivery_tag"],
        accept=accept,
    )
