"""The exporter's eye: looks at all GPUs and pools every second, and follows the journal meanwhile.

A scrape asks nothing of Redis: it is told what was seen last. So it never waits, and several cost no more than one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_gpulease.ledger.figures import is_idle_and_wanted, sites, totals, wait_of
from celery_gpulease.ledger.journal import BEGINNING, LONG_PAGE, entries_after, has_begun_anew
from celery_gpulease.ledger.views import gpu_rows, pool_rows
from celery_gpulease.loops import Loop
from celery_gpulease.operate import measures
from celery_gpulease.operate.following import Story
from celery_gpulease.tally import OTHER

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger
    from celery_gpulease.ledger.figures import Site
    from celery_gpulease.ledger.views import GPURow, PoolRow
    from celery_gpulease.tally import Measure, Values

#: Seconds between two looks; more, where a look takes long: the part of the time for which one keeps Redis busy.
LOOK_EVERY: Final = 1.0
MOST_LOAD: Final = 0.05
#: The longest time for which a look may speak; where the last one is longer ago, nobody knows what was between.
LONGEST_BETWEEN: Final = 30.0


@dataclass(frozen=True)
class Look:
    """What is true now."""

    gpus: list[GPURow]
    sites: dict[str, Site]
    pools: dict[str, PoolRow]
    totals: dict[str, int]


class Watch(Loop):
    """Looks until it is stopped.

    Args:
        ledger: The ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__("exporter")
        self._ledger = ledger
        self._look: Look | None = None
        self._looked_at: float | None = None
        self._story = Story()
        self._number = BEGINNING
        self._has_begun = False

    def turn(self) -> float:
        """One look. While Redis is away nothing is told of what was true before."""
        began = time.monotonic()
        try:
            if not self._has_begun:
                self._learn()
            self._follow()
            self._look = self._see()
            self._count_idle(self._look)
        except BaseException:
            self._look = self._looked_at = None
            raise
        return max(LOOK_EVERY, (time.monotonic() - began) / MOST_LOAD)

    def readings(self) -> list[tuple[Measure, Values]]:
        """What a scrape is told."""
        look = self._look
        return [(measures.UP, {(): float(look is not None)}), *(_readings_of(look) if look else []),
                *self._story.tally.readings()]  # fmt: skip

    def _learn(self) -> None:
        """The journal's past tells who waits and runs since when, and is not counted: another exporter did, or none."""
        self._follow()
        self._story.begin(recall=lambda ticket: wait_of(self._ledger, ticket))
        self._has_begun = True

    def _follow(self) -> None:
        while True:
            entries = entries_after(self._ledger, self._number)
            if not entries and has_begun_anew(self._ledger, self._number):
                self._number = BEGINNING
                continue
            for entry in entries:
                self._number = entry.number  # first: what fails half-way is not counted twice
                self._story.take(entry)
            if len(entries) < LONG_PAGE:
                return

    def _see(self) -> Look:
        gpus = gpu_rows(self._ledger)
        names = [gpu.id for gpu in gpus]
        return Look(gpus, sites(self._ledger, names), pool_rows(self._ledger, gpus), totals(self._ledger))

    def _count_idle(self, look: Look) -> None:
        now, before = time.monotonic(), self._looked_at
        self._looked_at = now
        seconds = now - before if before is not None and now - before <= LONGEST_BETWEEN else 0.0
        is_waited_for = any(pool.pending for pool in look.pools.values())
        for gpu in look.gpus:
            if gpu.task_id is None and (gpu.state != "free" or gpu.reason):
                self._story.pass_over(gpu.id)
            is_idle = is_waited_for and gpu.state == "free" and is_idle_and_wanted(self._ledger, gpu.id)
            self._story.tally.count(measures.IDLE, gpu.id, by=seconds if is_idle else 0.0)


def _readings_of(look: Look) -> list[tuple[Measure, Values]]:
    pools = look.pools.items()
    return [
        *_readings_of_gpus(look),
        (measures.PENDING, {(name,): float(row.pending) for name, row in pools}),
        (measures.OLDEST, {(name,): row.oldest_seconds or 0.0 for name, row in pools}),
        (measures.SCHEDULED, {(name,): float(row.scheduled) for name, row in pools}),
        (measures.POOL_GPUS, _gpus_by_pool(look)),
        (measures.EVENT, {(event,): float(number) for event, number in _known(look.totals).items()}),
        (measures.LOST, {(how,): float(look.totals.get(how, 0)) for how in measures.LOSSES}),
    ]


def _readings_of_gpus(look: Look) -> list[tuple[Measure, Values]]:
    states, infos = dict[tuple[str, ...], float](), dict[tuple[str, ...], float]()
    held, ttls = dict[tuple[str, ...], float](), dict[tuple[str, ...], float]()
    for gpu in look.gpus:
        site = look.sites[gpu.id]
        infos[gpu.id, site.uuid, site.host, site.index, ",".join(gpu.pools)] = 1.0
        for state in measures.STATES:
            states[gpu.id, site.uuid, state] = float(state == gpu.state)
        if gpu.held_seconds is not None and gpu.fence is not None:  # else a foreign holder has it
            held[gpu.id,] = gpu.held_seconds
        if gpu.ttl_seconds is not None or gpu.state == "leased":
            ttls[gpu.id,] = -1.0 if gpu.ttl_seconds is None else gpu.ttl_seconds
    return [
        (measures.GPU_STATE, states),
        (measures.GPU_INFO, infos),
        (measures.GPU_HELD, held),
        (measures.LEASE_TTL, ttls),
    ]


def _gpus_by_pool(look: Look) -> Values:
    found: dict[tuple[str, ...], float] = {(pool, state): 0.0 for pool in look.pools for state in measures.STATES}
    for gpu in look.gpus:
        for pool in gpu.pools:
            found[pool, gpu.state] = found.get((pool, gpu.state), 0.0) + 1
    return found


def _known(totals: dict[str, int]) -> dict[str, int]:
    """What a stranger counts there is one number: each label costs Prometheus memory for ever."""
    others = sum(number for event, number in totals.items() if event not in measures.EVENTS)
    known = {event: totals.get(event, 0) for event in measures.EVENTS}
    return {**known, OTHER: others} if others else known
