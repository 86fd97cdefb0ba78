"""What only metrics ask of the ledger: reads, in few round trips, whatever the number of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_gpulease.ledger.connection import in_our_words

if TYPE_CHECKING:
    from celery_gpulease.ledger.ledger import Ledger


@dataclass(frozen=True)
class Site:
    """Where a GPU is: what other exporters know it by."""

    host: str
    index: str
    uuid: str


@dataclass(frozen=True)
class Wait:
    """For which pool a ticket was held, and since when it is due (the epoch's seconds)."""

    pool: str
    since: float


def totals(ledger: Ledger) -> dict[str, int]:
    """How often each thing has happened, since this Redis knows of us."""
    with in_our_words("totals"):
        found = ledger.client.hgetall(ledger.keys.named("counters"))
    return {str(what): int(number) for what, number in found.items() if str(number).isdecimal()}  # else a stranger's


def sites(ledger: Ledger, gpus: list[str]) -> dict[str, Site]:
    """Where these GPUs are, as their workers said."""
    if not gpus:
        return {}
    with in_our_words("sites"), ledger.client.pipeline(transaction=False) as pipe:
        for gpu in gpus:
            pipe.hmget(ledger.keys.named("device", gpu), "host", "index", "uuid")
        found = pipe.execute()
    return {gpu: Site(*(value or "" for value in values)) for gpu, values in zip(gpus, found, strict=True)}


def wait_of(ledger: Ledger, ticket: str) -> Wait | None:
    """What the ticket itself tells, while it is there; None afterwards."""
    with in_our_words("wait_of"):
        pool, held_ms, eta_ms = ledger.client.hmget(ledger.keys.named("ticket", ticket), "pool", "held_ms", "eta_ms")
    if pool is None or held_ms is None:
        return None
    return Wait(str(pool), max(int(held_ms), int(eta_ms or 0)) / 1000)


def is_idle_and_wanted(ledger: Ledger, gpu: str) -> bool:
    """Is this GPU free and open, with a living worker, while a task waits that it serves? All in one moment."""
    _, _, is_claimable, _, is_waited_for, *_ = ledger.inspect(gpu, change=False)
    return bool(is_claimable and is_waited_for)
