"""A held message, read back: the reverse of `holding.held`."""

from __future__ import annotations

import base64
from typing import Any

from kombu.message import Message
from kombu.utils.json import loads

from celery_gpulease.sending.holding import own_properties


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
