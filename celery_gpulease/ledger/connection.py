"""Clients of the ledger's Redis, and its troubles in our words."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_gpulease.exceptions import ConfigurationError, LedgerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Seconds until an unanswered command is an error: a heartbeat must not block for ever.
SOCKET_TIMEOUT: Final = 5.0
LEAST_SOCKET_TIMEOUT: Final = 1.0
CONNECT_TIMEOUT: Final = 2.0

#: What a server that cannot serve now answers; anything else is a mistake of ours and is raised as it is.
_UNAVAILABLE: Final = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
)
#: The same, where redis-py has no class for the code, or an older server puts it into a script's error.
_UNAVAILABLE_CODES: Final = re.compile(r"\b(BUSY|LOADING|MISCONF|NOREPLICAS|OOM|READONLY|UNBLOCKED)\b|> 'maxmemory'")


#: What only connections over a network take.
OF_THE_NETWORK: Final = {"socket_connect_timeout": CONNECT_TIMEOUT, "socket_keepalive": True}


def connect(url: str, options: Mapping[str, Any], **forced: Any) -> Any:
    """A redis.Redis of the server that `gpulease_redis_url` names.

    Args:
        url: `redis://`, `rediss://`, `unix://`, or `sentinel://` with several hosts joined by `;`.
        options: `gpulease_redis_options`; they win over our defaults. Sentinel needs `master_name`.
        forced: What this client cannot do without, such as how it decodes.
    """
    given = {
        "socket_timeout": SOCKET_TIMEOUT,
        **({} if url.startswith("unix://") else OF_THE_NETWORK),
        "retry": Retry(NoBackoff(), 1),  # once, for a pooled connection that died while idle
        **options,
        **forced,
    }
    if not url.startswith("sentinel://"):
        return redis.Redis.from_url(url, **given)
    if "master_name" not in given:
        message = "gpulease_redis_options: a sentinel:// URL needs 'master_name'"
        raise ConfigurationError(message)
    master = given.pop("master_name")
    sentinel_options = given.pop("sentinel_kwargs", None)
    hosts = [urlsplit(one) for one in url.split(";")]
    given.setdefault("password", hosts[0].password)
    given.setdefault("db", int(hosts[0].path.strip("/") or 0))
    nodes = [(one.hostname or "localhost", one.port or 26379) for one in hosts]
    return Sentinel(nodes, sentinel_kwargs=sentinel_options).master_for(master, **given)


def timeout_for(heartbeat_interval: float) -> float:
    """The socket timeout of a client: an unanswered command must not outlast the beats that keep a lease."""
    return min(SOCKET_TIMEOUT, max(LEAST_SOCKET_TIMEOUT, heartbeat_interval))


def is_same_server(one: str, other: str) -> bool:
    """Do both URLs name one database of one server?"""
    return one == other or _place(one) == _place(other)


def _place(url: str) -> tuple[Any, ...]:
    if url.startswith("sentinel://"):
        return (url,)
    parts = parse_url(url)
    host = {"localhost": "127.0.0.1"}.get(parts.get("host", "localhost"), parts.get("host"))
    return (parts.get("path") or (host, parts.get("port", 6379)), int(parts.get("db", 0)))


@contextmanager
def in_our_words(what: str) -> Iterator[None]:
    """Turns what Redis cannot do now into LedgerUnavailable, which names the operation.

    Raises:
        LedgerUnavailable: The server cannot be reached, or cannot write.
    """
    try:
        yield
    except redis.exceptions.RedisError as error:
        if not isinstance(error, _UNAVAILABLE) and not _UNAVAILABLE_CODES.search(str(error)):
            raise
        message = f"{what}: the Redis that holds the leases (gpulease_redis_url) does not answer: {error}"
        raise LedgerUnavailable(message) from error
