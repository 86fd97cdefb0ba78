"""The journal, read by those who tell others what happened: each entry by one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import redis

from celery_gpulease.ledger.connection import in_our_words

if TYPE_CHECKING:
    from celery_gpulease.ledger.ledger import Ledger

#: The consumer group of those who send events.
GROUP: Final = "events"
#: Entries in one round trip.
PAGE: Final = 100


@dataclass(frozen=True)
class Entry:
    """What happened to a task, when (the epoch's seconds), on which GPU, and why."""

    at: float
    what: str
    task_id: str
    gpu: str
    detail: str


def take_entries(ledger: Ledger, reader: str) -> list[Entry]:
    """The next entries that no reader has taken yet, at most a hundred; the first call ever begins with the present.

    What a reader took when it died is not told: an event is a hint.

    Args:
        ledger: The ledger.
        reader: The name of who asks.
    """
    key = ledger.keys.named("journal")
    with in_our_words("take_entries"):
        try:
            found = ledger.client.xreadgroup(GROUP, reader, {key: ">"}, count=PAGE, noack=True)
        except redis.exceptions.ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            _create_group(ledger, key)
            return []
    return [_entry(number, fields) for _, entries in found for number, fields in entries]


def _create_group(ledger: Ledger, key: str) -> None:
    try:
        ledger.client.xgroup_create(key, GROUP, mkstream=True)
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):  # another was first
            raise


def _entry(number: str, fields: dict[str, str]) -> Entry:
    at = int(number.partition("-")[0]) / 1000
    return Entry(at, fields["what"], fields["task_id"], fields["gpu"], fields["detail"])
