"""What is there: workers, lines and queues, counted for `doctor`. Reads only, in pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_gpulease.ledger.connection import in_our_words
from celery_gpulease.ledger.journal import last_entry
from celery_gpulease.ledger.keys import literally
from celery_gpulease.ledger.turns import host_and_pool
from celery_gpulease.ledger.views import gpu_names, named_lines
from celery_gpulease.model import QUEUE_PREFIX, Presence, is_gpu_queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger.ledger import Ledger

#: GPUs in one round trip, and keys that one SCAN looks at.
PAGE: Final = 100
SCAN: Final = 1000


@dataclass(frozen=True)
class Line:
    """How many wait for a pool, or for the GPU that they are pinned to; the other is empty.

    `gpu` is that GPU's id; `pin` may be its other name, or that of a GPU which does not exist.
    """

    pool: str
    pin: str
    gpu: str
    length: int


def presences(ledger: Ledger) -> list[Presence]:
    """What the workers of all GPUs say of themselves, as long as they are present."""
    names, told = gpu_names(ledger), list[str | None]()
    for at in range(0, len(names), PAGE):
        with in_our_words("presences"), ledger.client.pipeline(transaction=False) as pipe:
            for gpu in names[at : at + PAGE]:
                pipe.get(ledger.keys.named("worker", gpu))
            told += pipe.execute()
    return [Presence.from_json(one) for one in told if one]


def gpu_called(ledger: Ledger, name: str) -> str | None:
    """The id of the GPU that is called so; None where none is."""
    with in_our_words("names"):
        found: str | None = ledger.client.hget(ledger.keys.named("names"), name)
    return found


def layout_version(ledger: Ledger) -> str | None:
    """The version that gave the ledger its layout; None where nothing has been there yet."""
    with in_our_words("layout"):
        found: str | None = ledger.client.hget(ledger.keys.named("layout"), "version")
    return found


def seconds_since_reconciled(ledger: Ledger) -> float | None:
    """Since a reconciliation began, by the server's clock; None where none ever did."""
    with in_our_words("reconciled"), ledger.client.pipeline(transaction=False) as pipe:
        pipe.hget(ledger.keys.named("pulse"), "reconciled_at")
        pipe.time()
        at, (seconds, _) = pipe.execute()
    return None if at is None else max(0.0, int(seconds) - int(at) / 1000)


def last_entry_at(ledger: Ledger) -> float | None:
    """The time that the journal's last entry bears, in the epoch's seconds; None where there is none."""
    last = last_entry(ledger)
    return None if last is None else last.at


def lines(ledger: Ledger) -> Iterator[Line]:
    """Where somebody waits: the lines of pools, then those of GPUs; not those of programs, which need no worker."""
    for kind in ("pending", "pinned"):
        for name in sorted(_names(ledger, kind)):
            with in_our_words("lines"):
                length = int(ledger.client.zcard(ledger.keys.named(kind, name)))
            if length and kind == "pending":
                yield Line(name, "", "", length)
            elif length and not host_and_pool(name):
                yield Line("", name, gpu_called(ledger, name) or name, length)


def is_in_use(ledger: Ledger) -> bool:
    """Does a worker live, or somebody wait?"""
    return bool(presences(ledger)) or next(lines(ledger), None) is not None


def queues_without_gpu(ledger: Ledger) -> Iterator[tuple[str, int]]:
    """Keys with messages for GPUs that are not registered, and how many lie there; only those in this Redis."""
    known, begins = set(gpu_names(ledger)), ledger.route_to("")
    with in_our_words("queues"):
        keys = sorted(map(str, ledger.client.scan_iter(literally(begins) + "*", count=SCAN, _type="list")))
        for key in keys:
            gpu = key.removeprefix(begins)
            if gpu not in known and is_gpu_queue(QUEUE_PREFIX + gpu):
                yield key, int(ledger.client.llen(key))


def _names(ledger: Ledger, kind: str) -> set[str]:
    with in_our_words("lines"):
        return {name for one, name in named_lines(ledger) if one == kind}
