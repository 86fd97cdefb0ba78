"""The journal, read by those who tell others what happened, each entry by one of them; and by who follows all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import redis

from celery_gpulease.ledger.connection import in_our_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger.ledger import Ledger

#: The consumer group of those who send events, and its one consumer: what is taken is never pending.
GROUP: Final = "events"
READER: Final = "all"
#: Entries in one round trip; and of who follows all of them.
PAGE: Final = 100
LONG_PAGE: Final = 1000
#: Before the first entry.
BEGINNING: Final = "0-0"


@dataclass(frozen=True)
class Entry:
    """What happened to a task, when (the epoch's seconds), on which GPU, and why.

    `number` is its place; `task` is the task's name, empty where its ticket was gone.
    """

    at: float
    what: str
    task_id: str
    gpu: str
    detail: str
    ticket: str = ""
    number: str = ""
    task: str = ""


def take_entries(ledger: Ledger) -> list[Entry]:
    """The next entries that no reader has taken yet, at most a hundred; the first call ever begins with the present.

    What a reader took when it died is not told: an event is a hint.
    """
    key = ledger.keys.named("journal")
    with in_our_words("take_entries"):
        try:
            found = ledger.client.xreadgroup(GROUP, READER, {key: ">"}, count=PAGE, noack=True)
        except redis.exceptions.ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            _create_group(ledger, key)
            return []
    return [_entry(number, fields) for number, fields in _only_page(found)]


def entries_after(ledger: Ledger, number: str) -> list[Entry]:
    """The next entries after this one, at most a thousand, oldest first; whoever else reads them."""
    with in_our_words("entries_after"):
        found = ledger.client.xread({ledger.keys.named("journal"): number}, count=LONG_PAGE)
    return [_entry(name, fields) for name, fields in _only_page(found)]


def last_entry(ledger: Ledger) -> Entry | None:
    """The last one; None where there is none."""
    with in_our_words("last_entry"):
        found = ledger.client.xrevrange(ledger.keys.named("journal"), count=1)
    return _entry(*found[0]) if found else None


def has_begun_anew(ledger: Ledger, number: str) -> bool:
    """Was the journal deleted since this entry, so that all that it has now stands before that one's number?"""
    last = last_entry(ledger)
    return last is not None and _place(last.number) < _place(number)


def _place(number: str) -> tuple[int, int]:
    at, _, count = number.partition("-")
    return int(at), int(count)


def entries_backward(ledger: Ledger) -> Iterator[Entry]:
    """All entries, the last first, in pages; about ten thousand are kept."""
    before = "+"
    while True:
        with in_our_words("entries_backward"):
            page = ledger.client.xrevrange(ledger.keys.named("journal"), max=before, count=LONG_PAGE)
        yield from (_entry(number, fields) for number, fields in page)
        if len(page) < LONG_PAGE:
            return
        before = f"({page[-1][0]}"


def take_turn(ledger: Ledger, who: str, seconds: float) -> bool:
    """Is it this one's turn to look at the journal, for so many seconds from now? One at a time has it.

    Args:
        ledger: The ledger.
        who: Asks; whoever has the turn keeps it by asking again.
        seconds: After which another may have it.
    """
    key, ttl_ms = ledger.keys.named("turn", "tell"), int(seconds * 1000)
    with in_our_words("take_turn"):
        if ledger.client.get(key) == who and ledger.client.pexpire(key, ttl_ms):
            return True
        return bool(ledger.client.set(key, who, nx=True, px=ttl_ms))


def _only_page(found: Any) -> list[tuple[str, dict[str, str]]]:
    """The entries of the only stream in an answer: redis-py gives a dict where `protocol` is 3, and nests it deeper."""
    pages = list(found.values()) if isinstance(found, dict) else [page for _, page in found]
    while pages and isinstance(pages[0], list):
        pages = pages[0]
    return pages


def _create_group(ledger: Ledger, key: str) -> None:
    try:
        ledger.client.xgroup_create(key, GROUP, mkstream=True)
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):  # another was first
            raise


def _entry(number: str, fields: dict[str, str]) -> Entry:
    """Whatever a stranger has written there stops nobody."""
    what, task_id, gpu, detail, ticket, task = (
        fields.get(one, "") for one in ("what", "task_id", "gpu", "detail", "ticket", "task")
    )
    return Entry(int(number.partition("-")[0]) / 1000, what, task_id, gpu, detail, ticket, number, task)
