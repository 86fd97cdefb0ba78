"""Which of our keys somebody has written to with another type: every operation that meets one fails (WRONGTYPE).

Nothing is asked that needs a right of its own, as TYPE would: a command of the type that the key should have is tried.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import redis

from celery_gpulease.ledger.connection import in_our_words
from celery_gpulease.ledger.views import gpu_names, named_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger.ledger import Ledger

#: As the table in `keys` has them: the types of keys that have a name after their kind, and of single ones.
NAMED: Final = {
    "lease": "string",
    "claim": "hash",
    "fence": "string",
    "ticket": "hash",
    "message": "string",
    "returned": "set",
    "task": "hash",
    "pending": "zset",
    "pinned": "zset",
    "pinned_in": "zset",
    "free": "zset",
    "device": "hash",
    "worker": "string",
    "closed": "hash",
    "routed": "list",
    "want": "string",
    "turn": "string",
}
SINGLE: Final = {
    "deadlines": "zset",
    "lines": "set",
    "scheduled": "zset",
    "scheduled_count": "hash",
    "expiring": "zset",
    "ending": "zset",
    "ended": "zset",
    "revoked": "zset",
    "revoked_stamps": "zset",
    "arrival": "string",
    "gpus": "zset",
    "heartbeats": "zset",
    "names": "hash",
    "pulse": "hash",
    "journal": "stream",
    "counters": "hash",
    "layout": "hash",
}
_OF_GPU: Final = ("lease", "want", "worker", "fence", "claim", "device", "closed", "routed")
_TURNS: Final = ("turn:reconcile", "turn:tell")
_TRIED: Final = {
    "zset": ("ZCARD",),
    "hash": ("HEXISTS", "f"),
    "string": ("GET",),
    "set": ("SCARD",),
    "list": ("LLEN",),
    "stream": ("XREVRANGE", "+", "-", "COUNT", 1),
}


def wrong_keys(ledger: Ledger) -> list[tuple[str, str]]:
    """Keys of another type than ours have, each with the type that it should have; not those of single tickets.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    keys = dict(_keys(ledger))
    with in_our_words("types"), ledger.client.pipeline(transaction=False) as pipe:
        for key, kind in keys.items():
            command, *rest = _TRIED[kind]
            pipe.execute_command(command, key, *rest)
        answers = pipe.execute(raise_on_error=False)
    return [
        (key, kind)
        for (key, kind), answer in zip(keys.items(), answers, strict=True)
        if isinstance(answer, redis.exceptions.ResponseError) and "WRONGTYPE" in str(answer)
    ]


def _keys(ledger: Ledger) -> Iterator[tuple[str, str]]:
    yield from ((ledger.keys.named(name), of_type) for name, of_type in SINGLE.items())
    yield from ((ledger.keys.named(name), NAMED["turn"]) for name in _TURNS)
    for look in (_keys_of_gpus, _keys_of_lines):
        with suppress(redis.exceptions.ResponseError):  # what names them is one of those itself
            yield from list(look(ledger))


def _keys_of_gpus(ledger: Ledger) -> Iterator[tuple[str, str]]:
    for gpu in gpu_names(ledger):
        yield from ((ledger.keys.named(kind, gpu), NAMED[kind]) for kind in _OF_GPU)


def _keys_of_lines(ledger: Ledger) -> Iterator[tuple[str, str]]:
    with in_our_words("types"):
        lines = named_lines(ledger)
    yield from ((ledger.keys.named(*line), "zset") for line in lines)


def in_words(wrong: list[tuple[str, str]]) -> str:
    """What is wrong, for people."""
    told = " and ".join(f"{key} is no {kind} any more" for key, kind in wrong)
    return f"somebody has written something else in the place of our keys: {told}"


def cure(wrong: list[tuple[str, str]]) -> str:
    """What to do about it."""
    return f"find out who did, then delete what is there (DEL {' '.join(key for key, _ in wrong)}): it is made anew"
