"""A walk through the whole ledger: every ticket and every GPU that any key names, a part of it at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import redis

from celery_gpulease.ledger.connection import in_our_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger.ledger import Ledger

#: Keys, or members of one key, in one round trip.
PAGE: Final = 200
#: What one look at a page of keys costs of a walk's budget, whoever's keys they are.
PAGE_COST: Final = 10

#: Kinds of keys whose name is a ticket's, or a GPU's.
_NAMED_BY_ITS_KEY: Final = {
    **dict.fromkeys(("ticket", "message", "returned"), "ticket"),
    **dict.fromkeys(("claim", "device", "worker", "closed"), "gpu"),
}
#: Kinds of keys whose members are that, and how they are read.
_NAMED_INSIDE: Final = {
    "task": ("ticket", "hscan"),
    **dict.fromkeys(("pending", "pinned", "pinned_in", "scheduled", "expiring", "ending"), ("ticket", "zscan")),
    **dict.fromkeys(("free", "gpus", "heartbeats", "deadlines"), ("gpu", "zscan")),
    "names": ("gpu", "hscan"),
}


@dataclass(frozen=True)
class Seen:
    """A ticket, or a GPU, and the key after our prefix that names it; empty where that key is its own.

    `trouble` says why a key cannot be read; then there is neither.
    """

    ticket: str = ""
    gpu: str = ""
    found_in: str = ""
    trouble: str = ""


@dataclass
class _Position:
    """Where a walk is: Redis' cursor, the keys of its last page, and the cursor inside the first of them."""

    cursor: int = 0
    keys: list[str] = field(default_factory=list)
    inside: int = 0


def walk(ledger: Ledger, budget: int | None = None) -> Iterator[Seen]:
    """Names everything once or more; with a budget about so many, from where the last such walk stopped.

    What is there from the first to the last step of a round is named; see Redis' SCAN for what comes and goes.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    if budget is None:
        yield from _steps(ledger, _Position(), None)
        return
    kept = ledger.keys.named("pulse")
    with in_our_words("walk"):
        at = _position(ledger.client.hget(kept, "walk"))
    yield from _steps(ledger, at, budget)
    with in_our_words("walk"):
        ledger.client.hset(kept, "walk", json.dumps(at.__dict__))


def _position(kept: str | None) -> _Position:
    try:
        return _Position(**json.loads(kept or "{}"))
    except (TypeError, ValueError):  # another version's, or somebody's
        return _Position()


def _steps(ledger: Ledger, at: _Position, budget: int | None) -> Iterator[Seen]:
    pattern = ledger.keys.pattern()
    spent = 0
    while budget is None or spent < budget:
        if not at.keys:
            with in_our_words("walk"):
                at.cursor, at.keys = ledger.client.scan(at.cursor, match=pattern, count=PAGE)
            spent += PAGE_COST
        while at.keys and (budget is None or spent < budget):
            at.inside, seen = _look_inside(ledger, at.keys[0], at.inside)
            spent += max(1, len(seen))
            if at.inside == 0:
                at.keys = at.keys[1:]
            yield from seen
        if at.cursor == 0 and not at.keys:
            return  # once round; the next walk begins anew


def _look_inside(ledger: Ledger, key: str, cursor: int) -> tuple[int, list[Seen]]:
    """A page of what one key names, and the cursor of the next page, 0 for none."""
    name = key.removeprefix(ledger.keys.prefix)
    kind, _, own = name.partition(":")
    if kind in _NAMED_BY_ITS_KEY:
        return 0, [Seen(**{_NAMED_BY_ITS_KEY[kind]: own})]
    if kind not in _NAMED_INSIDE:
        return 0, []
    what, scan = _NAMED_INSIDE[kind]
    try:
        with in_our_words("walk"):
            cursor, members = getattr(ledger.client, scan)(key, cursor, count=PAGE)
    except redis.exceptions.ResponseError as error:  # it is of another type
        return 0, [Seen(found_in=name, trouble=str(error))]
    if kind == "names":
        return cursor, [Seen(gpu=gpu, found_in=f"names:{other}") for other, gpu in members.items()]
    return cursor, [Seen(**{what: one}, found_in=name) for one in dict(members)]
