"""What the server does for us, tried out: on keys of our own that are gone again afterwards."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import redis

from celery_gpulease.ledger.connection import database_of, in_our_words
from celery_gpulease.model import unique

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_gpulease.ledger.ledger import Ledger

#: Milliseconds after which a probe is gone in any case.
PROBE_MS: Final = 10_000
#: Seconds that an event may take.
EVENT_SECONDS: Final = 1.0
#: Pings of which the median counts.
PINGS: Final = 11


def heard_events(ledger: Ledger) -> set[str]:
    """Which of 'del' and 'expired' the server tells of a probe key, as a GPU's worker listens.

    The probe is a wish for a GPU that does not exist: nobody minds it.

    Raises:
        LedgerUnavailable: Redis does not answer.
        NotPermitted: Our user may not listen.
    """
    key = ledger.keys.want(f"doctor-{unique()}")
    with in_our_words("events"):
        pubsub = ledger.client.pubsub()
        try:
            pubsub.subscribe(f"__keyspace@{database_of(ledger.client)}__:{key}")
            _next(pubsub, "subscribe")
            return _provoked(ledger.client, pubsub, key)
        finally:
            pubsub.close()


def _provoked(client: Any, pubsub: Any, key: str) -> set[str]:
    client.set(key, "probe", px=PROBE_MS)
    client.delete(key)
    was_deleted = _next(pubsub, "message", "del")
    client.set(key, "probe", px=1)
    deadline = time.monotonic() + EVENT_SECONDS
    while client.exists(key) and time.monotonic() < deadline:  # a look makes the server notice, and tell
        time.sleep(0.001)
    has_expired = _next(pubsub, "message", "expired")
    return {word for word in (was_deleted, has_expired) if word}


def _next(pubsub: Any, kind: str, *words: str) -> str | None:
    """The next of these words, None where none comes in time."""
    deadline = time.monotonic() + EVENT_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        message = pubsub.get_message(timeout=left)
        if message and message["type"] == kind and (not words or message["data"] in words):
            return str(message["data"])
    return None


def round_trip(ledger: Ledger) -> float:
    """Seconds that a command takes, the median of some."""
    took = []
    with in_our_words("ping"):
        for _ in range(PINGS):
            asked = time.monotonic()
            ledger.client.ping()
            took.append(time.monotonic() - asked)
    return statistics.median(took)


def clock_ahead(ledger: Ledger) -> float:
    """Seconds by which the server's clock is ahead of this machine's; right to half a round trip."""
    with in_our_words("time"):
        asked = time.time()
        seconds, microseconds = ledger.client.time()
        answered = time.time()
    return float(int(seconds) + int(microseconds) / 1e6 - (asked + answered) / 2)


def information(ledger: Ledger, section: str) -> Mapping[str, Any] | None:
    """A section of INFO; None where the server does not let us ask."""
    try:
        with in_our_words("info"):
            found: dict[str, Any] = ledger.client.info(section)
    except redis.exceptions.ResponseError:
        return None
    return found


def configuration(ledger: Ledger, *names: str) -> Mapping[str, str] | None:
    """Settings of the server; None where it does not let us ask."""
    found: dict[str, str] = {}
    try:
        with in_our_words("config"):
            for name in names:
                found |= ledger.client.config_get(name)
    except redis.exceptions.ResponseError:
        return None
    return found
