"""Our rights in Redis ('Rights in Redis' in README), each tried out on a probe key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import redis

from celery_gpulease.ledger.connection import database_of, in_our_words
from celery_gpulease.model import unique

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    from celery_gpulease.ledger.ledger import Ledger

    #: Each without the key, which is its first argument.
    _Commands: TypeAlias = tuple[tuple[str | float, ...], ...]

#: Shown by the events that a probe hears, and by the server's settings that `doctor` looks at.
SHOWN_ELSEWHERE: Final = frozenset({"subscribe", "config|get", "config|set", "info"})
_SCRIPT: Final = "return redis.call('EXISTS', KEYS[1])"

_ON_STRINGS: Final[_Commands] = (("SET", "v", "PX", 10_000), ("GET",), ("EXISTS",), ("PEXPIRE", 10_000), ("PTTL",))
_ON_HASHES: Final[_Commands] = (
    *(("HSET", "f", 1), ("HGET", "f"), ("HMGET", "f"), ("HGETALL",), ("HKEYS",), ("HEXISTS", "f")),
    *(("HINCRBY", "f", 1), ("HSCAN", 0), ("HDEL", "f")),
)
_ON_SETS: Final[_Commands] = (("SADD", "m"), ("SCARD",), ("SMEMBERS",), ("SISMEMBER", "m"), ("SSCAN", 0), ("SREM", "m"))
_ON_ZSETS: Final[_Commands] = (
    *(("ZADD", 1, "m"), ("ZCARD",), ("ZCOUNT", 0, 1), ("ZSCORE", "m"), ("ZRANK", "m"), ("ZRANGE", 0, 0)),
    *(("ZREVRANGE", 0, 0), ("ZRANGEBYSCORE", 0, 1), ("ZSCAN", 0), ("ZREMRANGEBYRANK", 0, 0), ("ZREM", "m")),
)
_ON_LISTS: Final[_Commands] = (("LPUSH", "v"), ("LLEN",), ("LRANGE", 0, 0), ("LREM", 1, "none"), ("BRPOP", 0.01))
_ON_STREAMS: Final[_Commands] = (("XADD", "*", "f", 1), ("XREVRANGE", "+", "-", "COUNT", 1))


def refusals(ledger: Ledger) -> list[tuple[str, str]]:
    """The commands that we need and the server refuses now, each with its words.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    commands = list(tried(ledger))
    with in_our_words("rights"), ledger.client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        answers = pipe.execute(raise_on_error=False)
    return [
        (str(command[0]).lower(), str(answer))
        for command, answer in zip(commands, answers, strict=True)
        if isinstance(answer, redis.exceptions.RedisError)
    ]


def tried(ledger: Ledger) -> Iterator[tuple[Any, ...]]:
    """Every command that we need, on keys that are gone afterwards."""
    name = f"doctor-{unique()}"
    key = ledger.keys.named("doctor", name)
    keys = {f"{key}:{kind}": on for kind, on in (("string", _ON_STRINGS), ("hash", _ON_HASHES), ("set", _ON_SETS))}
    keys |= {f"{key}:zset": _ON_ZSETS, f"{key}:stream": _ON_STREAMS, ledger.route_to(name): _ON_LISTS}
    yield from _of_the_server(ledger, key)
    for on, commands in keys.items():
        yield from ((command, on, *rest) for command, *rest in commands)
    stream = f"{key}:stream"
    yield ("XGROUP CREATE", stream, "g", "0")
    yield ("XREAD", "COUNT", 1, "STREAMS", stream, "0")
    yield ("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "NOACK", "STREAMS", stream, ">")
    yield from (("DEL", on) for on in keys)


def _of_the_server(ledger: Ledger, key: str) -> Iterator[tuple[Any, ...]]:
    sha, channel = ledger.client.register_script(_SCRIPT).sha, ledger.keys.here("doctor")
    yield ("PING",)
    yield ("SELECT", database_of(ledger.client))
    yield ("TIME",)
    yield ("SCRIPT LOAD", _SCRIPT)
    yield ("EVALSHA", sha, 1, key)
    yield ("SCRIPT EXISTS", sha)
    yield ("SCAN", 0, "MATCH", key, "COUNT", 1)
    yield ("PUBLISH", channel, "probe")
    yield ("PUBSUB NUMSUB", channel)
    yield ("PUBSUB CHANNELS", channel)
