"""The whole ledger as it is: every key under our prefix, read in pages."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.ledger.types import NAMED, SINGLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_gpulease.ledger.ledger import Ledger

#: Keys, or members, in one round trip.
PAGE: Final = 500


@dataclass
class Picture:
    """The whole ledger: kind → name → value (the name of a single key is empty)."""

    now_ms: int
    values: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    ttls: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    unknown: list[str] = field(default_factory=list)

    def all(self, kind: str) -> dict[str, Any]:
        """Every key of a kind."""
        return self.values.get(kind, {})

    def one(self, kind: str, name: str = "") -> Any:
        """One key's value; empty where it is not there."""
        return self.all(kind).get(name, {})


def read_picture(ledger: Ledger) -> Picture:
    """All of it. Exact while nobody writes.

    Raises:
        redis.exceptions.RedisError: As from redis-py.
    """
    client, prefix = ledger.client, ledger.keys.prefix
    seconds, microseconds = client.time()
    picture = Picture(int(seconds) * 1000 + int(microseconds) // 1000)
    names = sorted({str(key) for key in client.scan_iter(ledger.keys.pattern(), count=PAGE)})
    for at in range(0, len(names), PAGE):
        _read_page(client, prefix, names[at : at + PAGE], picture)
    return picture


def _read_page(client: Any, prefix: str, page: list[str], picture: Picture) -> None:
    with client.pipeline(transaction=False) as pipe:
        for key in page:
            pipe.type(key)
        types = pipe.execute()
    known = []
    for key, found in zip(page, types, strict=True):
        kind, colon, name = key.removeprefix(prefix).partition(":")
        if (NAMED if colon else SINGLE).get(kind) == found:
            known.append((key, kind, name, found))
        elif found != "none":  # it ended between two looks
            picture.unknown.append(f"{key} ({found})")
    with client.pipeline(transaction=False) as pipe:
        for key, _, _, found in known:
            _ask(pipe, key, found)
        values = pipe.execute()
    ttls = pttls(client, (key for key, *_ in known))
    for (key, kind, name, found), value, ttl in zip(known, values, ttls, strict=True):
        if ttl == -2:  # noqa: PLR2004  Redis' word for a key that is not there
            continue
        picture.values[kind][name] = dict(client.zscan_iter(key, count=PAGE)) if found == "zset" else value
        picture.ttls[kind][name] = ttl


def _ask(pipe: Any, key: str, kind: str) -> None:
    if kind == "string":
        pipe.get(key)
    elif kind == "hash":
        pipe.hgetall(key)
    elif kind == "set":
        pipe.smembers(key)
    else:  # a zset is read in pages, the journal and messages not at all
        pipe.exists(key)


def pttls(client: Any, keys: Iterable[str]) -> list[int]:
    """Milliseconds that each key has left, in one round trip: -1 without a TTL, -2 where there is none."""
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.pttl(key)
        return [int(ttl) for ttl in pipe.execute()]
