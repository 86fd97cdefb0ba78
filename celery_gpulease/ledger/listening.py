"""The subscription of one worker, or program: its lease's key and its own channel.

A watchdog finds half-open connections.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_gpulease.ledger.connection import connect, in_our_words
from celery_gpulease.ledger.connection import database_of as _database
from celery_gpulease.ledger.keys import literally
from celery_gpulease.model import QUEUE_PREFIX

if TYPE_CHECKING:
    from redis.client import PubSub

    from celery_gpulease.ledger.ledger import Ledger

#: Seconds between our pings, and without any answer until the connection is given up: redis-py's own health check
#: (`PubSub.check_health` in redis/client.py) never notices a half-open connection.
PING_EVERY: Final = 2.0
SILENCE_LIMIT: Final = 6.0


class Subscription:
    """Waits for what concerns one GPU.

    Every (re)subscription means that events may have been missed: `wait` returns 'subscribed', and its caller looks at
    everything again. Subscribe messages are therefore never ignored.

    Args:
        ledger: The ledger.
        gpu: The GPU's id; empty for a program that has none yet.
        alias: Its other name, by which other programs may go; empty, or the same, for none.
        program: The ticket of a program; empty where the GPU's worker listens.
    """

    def __init__(self, ledger: Ledger, gpu: str, alias: str = "", *, program: str = "") -> None:
        settings = ledger.settings
        self._client = connect(
            settings.redis_url,
            settings.redis_options,
            socket_connect_timeout=1.0,
            socket_timeout=2.0,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
        )
        names = dict.fromkeys(filter(None, (gpu, alias)))
        keys = [ledger.keys.lease(name) for name in names]
        if not program:
            keys += [ledger.keys.want(name) for name in names]
        channels = [f"__keyspace@{_database(self._client)}__:{key}" for key in keys]
        if not program:
            channels.append(ledger.keys.prefix + _consumed(ledger, gpu))  # nothing is said there: see `other_prefixes`
        self._channels = [channel.encode() for channel in channels]
        self._here = ledger.keys.here(program or gpu).encode()
        self._pubsub: PubSub | None = None
        self._heard = self._pinged = 0.0

    @property
    def is_open(self) -> bool:
        """Is there a connection that is not known to be gone?"""
        return self._pubsub is not None

    def wait(self, seconds: float) -> str | None:
        """What happened within `seconds`, or None.

        'subscribed', 'lease' (the lease's key vanished, or a wish's), or a word from `here`.

        Raises:
            LedgerUnavailable: The connection is gone; the next call makes another one.
        """
        deadline = time.monotonic() + seconds
        try:
            with in_our_words("listen"):
                if self._pubsub is None:
                    self._subscribe()
                while (left := deadline - time.monotonic()) > 0:
                    if word := self._next(min(left, PING_EVERY)):
                        return word
        except BaseException:
            self.close()
            raise
        return None

    def close(self) -> None:
        """Gives the connection back."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            pubsub.close()

    def _subscribe(self) -> None:
        self._pubsub = self._client.pubsub()
        self._pubsub.subscribe(*self._channels, self._here)
        self._heard = self._pinged = time.monotonic()

    def _next(self, seconds: float) -> str | None:
        assert self._pubsub is not None  # noqa: S101
        message = self._pubsub.get_message(timeout=seconds)
        now = time.monotonic()
        if message is None:
            self._watch(now)
            return None
        self._heard = now
        if message["type"] == "subscribe":
            return "subscribed" if message["channel"] == self._here else None
        if message["type"] != "message":
            return None
        data = message["data"].decode(errors="replace")
        if message["channel"] == self._here:
            return str(data)
        return "lease" if data in ("del", "expired", "evicted", "rename_from", "move_from") else None

    def _watch(self, now: float) -> None:
        if now - self._heard > SILENCE_LIMIT:
            message = f"no answer for {SILENCE_LIMIT:g} s"
            raise redis.exceptions.ConnectionError(message)
        if now - self._pinged >= PING_EVERY and self._pubsub is not None:
            self._pinged = now
            self._pubsub.ping()


def other_prefixes(ledger: Ledger, gpu: str) -> list[str]:
    """Under which other key prefixes living workers consume this GPU's queue; none where the server does not tell.

    Two ledgers know nothing of one another: each would give the GPU away, and each one's worker take the other's
    messages.
    """
    name = _consumed(ledger, gpu)
    with in_our_words("other_prefixes"):
        try:
            channels = ledger.client.pubsub_channels("*" + literally(name))
        except redis.exceptions.ResponseError:  # an ACL without +pubsub
            return []
    return sorted({str(channel).removesuffix(name) for channel in channels} - {ledger.keys.prefix})


def _consumed(ledger: Ledger, gpu: str) -> str:
    """The channel of a GPU, but for the key prefix; apps with other queues are another world."""
    return f"queue:{_database(ledger.client)}:{ledger.queue_prefix or ''}{QUEUE_PREFIX}{gpu}"
