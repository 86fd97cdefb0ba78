"""Clients of the ledger's Redis, and its troubles in our words."""

from __future__ import annotations

import logging
import re
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from celery_gpulease.exceptions import ConfigurationError, LedgerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

logger = logging.getLogger(__name__)

#: Seconds until an unanswered command is an error: a heartbeat must not block for ever.
SOCKET_TIMEOUT: Final = 5.0
LEAST_SOCKET_TIMEOUT: Final = 1.0
CONNECT_TIMEOUT: Final = 2.0
SENTINEL_PORT: Final = 26379
#: The first version of redis-py all of whose connections over a socket in a file take a timeout.
TIMES_OUT_ON_UNIX: Final = 5
NO_RETRY: Final = Retry(NoBackoff(), 0)

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
#: A right that is missing, as servers tell of it where a script was about to use it.
_REFUSED_IN_SCRIPT: Final = re.compile("ACL failure in script|The user executing the script can't")

#: What only connections over a network take.
OF_THE_NETWORK: Final = {"socket_connect_timeout": CONNECT_TIMEOUT, "socket_keepalive": True}


def connect(url: str, options: Mapping[str, Any], **forced: Any) -> Any:
    """A redis.Redis of the server that `gpulease_redis_url` names.

    Args:
        url: `redis://`, `rediss://`, `unix://`, or `sentinel://` with several hosts joined by `;`.
        options: `gpulease_redis_options`; they win over our defaults. Sentinel needs `master_name`.
        forced: What this client cannot do without, such as how it decodes.

    Raises:
        ConfigurationError: An option is unknown, a sentinel's master has no name, or redis-py is too old for a socket
            in a file.
    """
    if url.startswith("unix://"):
        _refuse_old_client()
    given = {
        "socket_timeout": SOCKET_TIMEOUT,
        **({} if url.startswith("unix://") else OF_THE_NETWORK),
        "retry": Retry(NoBackoff(), 1),  # once, for a pooled connection that died while idle
        **options,
        **forced,
    }
    if any(name.startswith("ssl_") for name in given):  # as kombu has it: the options alone ask for TLS
        url, given["ssl"] = url.replace("redis://", "rediss://"), True
    if url.startswith("rediss://") or "ssl" in given:
        given.setdefault("ssl_check_hostname", _is_checked(url, given))  # redis-py's own default depends on its version
    try:
        client = _master(url, given) if url.startswith("sentinel://") else _server(url, given)
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # which alone knows its options; it does not connect yet
    except TypeError as error:
        unknown = re.search("unexpected keyword argument '(.+?)'", str(error))
        if unknown is None:
            raise
        message = f"gpulease_redis_options, or the query of gpulease_redis_url: redis-py has no option {unknown[1]!r}"
        raise ConfigurationError(message) from error
    return client


def _server(url: str, given: dict[str, Any]) -> Any:
    given.pop("ssl", None)
    return redis.Redis.from_url(url, **given)


def _refuse_old_client() -> None:
    """A heartbeat must not block for ever, and before 5.0 redis-py knew no timeout there, but in some versions."""
    if int(redis.__version__.split(".")[0]) < TIMES_OUT_ON_UNIX:
        message = (
            f"gpulease_redis_url: unix:// needs redis-py {TIMES_OUT_ON_UNIX} or newer, this is {redis.__version__}: "
            "pip install -U redis; or name the server's port"
        )
        raise ConfigurationError(message)


def _is_checked(url: str, given: Mapping[str, Any]) -> bool:
    """Is the server's certificate looked at? As redis-py has it, where nothing is said."""
    in_url = {} if url.startswith("sentinel://") else parse_url(url)
    return {"ssl_cert_reqs": "required", **given, **in_url}["ssl_cert_reqs"] not in (None, "none", ssl.CERT_NONE)


def _master(url: str, given: dict[str, Any]) -> Any:
    """A client of the master that the sentinels name; user, password and database are of their first URL, as in kombu.

    Raises:
        ConfigurationError: The master's name is missing.
    """
    if "master_name" not in given:
        message = (
            "gpulease_redis_options: a sentinel:// URL needs 'master_name' (where it is the broker's, "
            "broker_transport_options)"
        )
        raise ConfigurationError(message)
    places = [parse_url(one.replace("sentinel://", "redis://")) for one in url.split(";")]
    name, of_sentinels = given.pop("master_name"), given.pop("sentinel_kwargs", None) or {}
    least = given.pop("min_other_sentinels", 0)
    patience = {"socket_timeout": CONNECT_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT, "retry": NO_RETRY}
    sentinel = Sentinel(
        [(place.get("host", "localhost"), place.get("port", SENTINEL_PORT)) for place in places],
        min_other_sentinels=least,
        sentinel_kwargs={**patience, **of_sentinels},
    )
    credentials = {one: places[0][one] for one in ("username", "password", "db") if one in places[0]}
    return sentinel.master_for(name, **{"db": 0, **credentials, **given})


def timeout_for(heartbeat_interval: float) -> float:
    """The socket timeout of a client: an unanswered command must not outlast the beats that keep a lease."""
    return min(SOCKET_TIMEOUT, max(LEAST_SOCKET_TIMEOUT, heartbeat_interval))


def database_of(client: Any) -> int:
    """The number of the database that a client uses."""
    return int(client.connection_pool.connection_kwargs.get("db") or 0)


def is_same_server(one: str, other: str) -> bool:
    """Do both URLs name one database of one server?"""
    return one == other or _place(one) == _place(other)


def _place(url: str) -> tuple[Any, ...]:
    if url.startswith("sentinel://"):
        return (url,)
    parts = parse_url(url)
    host = {"localhost": "127.0.0.1"}.get(parts.get("host", "localhost"), parts.get("host"))
    return (parts.get("path") or (host, parts.get("port", 6379)), int(parts.get("db", 0)))


class WrongType(ConfigurationError, redis.exceptions.ResponseError):
    """One of our keys holds something else: somebody has written there. See `types.wrong_keys`."""


class NotPermitted(ConfigurationError, redis.exceptions.NoPermissionError):
    """The server's ACL refuses our user a command or a key. It is still redis-py's error, where we can do without."""


@contextmanager
def in_our_words(what: str) -> Iterator[None]:
    """Turns what Redis cannot do now into LedgerUnavailable, in words for whoever uses us.

    Args:
        what: Our own name for the operation, for the log's debug level.

    Raises:
        LedgerUnavailable: The server cannot be reached, cannot write, or does not accept our user or password.
        NotPermitted: Our user lacks a right.
        WrongType: A key of ours holds something else.
    """
    try:
        yield
    except redis.exceptions.RedisError as error:
        logger.debug("%s has failed: %s", what, error)
        if isinstance(error, redis.exceptions.NoPermissionError) or _REFUSED_IN_SCRIPT.search(str(error)):
            message = f"our Redis user lacks a right; 'Rights in Redis' in README names all of them: {error}"
            raise NotPermitted(message) from error
        if "WRONGTYPE" in str(error):
            message = f"somebody has written something else in the place of a key of ours; doctor names it: {error}"
            raise WrongType(message) from error
        if not isinstance(error, _UNAVAILABLE) and not _UNAVAILABLE_CODES.search(str(error)):
            raise
        said = "no sentinel knows a living master" if isinstance(error, MasterNotFoundError) else str(error)
        message = f"the Redis that holds the leases (gpulease_redis_url) does not answer: {said}"
        if isinstance(error, redis.exceptions.AuthenticationError):
            message = (
                "the Redis that holds the leases refuses us: user or password is missing or wrong. Set them in "
                f"gpulease_redis_url, or as 'username' and 'password' in gpulease_redis_options. It says: {said}"
            )
        if "CERTIFICATE_VERIFY_FAILED" in said:
            message += ". Name who has signed its certificate: 'ssl_ca_certs' in gpulease_redis_options"
        raise LedgerUnavailable(message) from error
