"""A GPU that is gone for good leaves the registry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from celery_gpulease.ledger.calls import Calls
from celery_gpulease.ledger.connection import in_our_words

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Tickets, or names, in one round trip.
PAGE: Final = 500


@dataclass(frozen=True)
class Removed:
    """What FORGET found of a GPU.

    Attributes:
        word: 'removed', or why it is not: 'served' (a worker is present), 'busy' (a run has it, or may have), 'leased'
            (a stranger has it), 'awaited' (by tasks that are pinned to it) or 'unknown' (no such GPU).
        gpu: Its id.
        what: What closed it, which is gone too; its worker; the task and its id; or the foreign holder.
        number: Of the tasks that wait for it; or seconds until a worker that is dead counts as gone.
    """

    word: str
    gpu: str = ""
    what: str = ""
    number: float = 0


class Removing(Calls):
    """The operation by which the registry shrinks."""

    def forget(self, gpu: str) -> Removed:
        """Takes a GPU out of the registry, and what closed it; refused while it may be in use, or is waited for.

        A worker that joins under its name later has a new GPU. A sender may pin a task to any name at any time, so that
        what is not due yet is counted before, in pages. Made twice, the second call finds it unknown.

        Args:
            gpu: Any name of it.
        """
        names = self._names_of(gpu)
        word, *found = self.about("forget", [names[0], str(self._scheduled_for(names)), *names[1:]])
        if word == "served":
            name, presence, left_ms = found
            return Removed(word, name, json.loads(presence)["worker"], max(0, left_ms) / 1000)
        if word == "busy":
            name, task_id, task = found
            return Removed(word, name, f"{task}[{task_id}]")
        if word == "awaited":
            return Removed(word, found[0], number=found[1])
        return Removed(word, *found)

    def _names_of(self, gpu: str) -> list[str]:
        """All names of a GPU, also those by which it went on another host or slot; its id comes first."""
        names = self.keys.named("names")
        with in_our_words("forget"):
            id_ = str(self.client.hget(names, gpu) or gpu)
            others = {str(name) for name, its in self.client.hscan_iter(names, count=PAGE) if its == id_}
        return [id_, *sorted(others - {id_})]

    def _scheduled_for(self, names: list[str]) -> int:
        """How many tickets that are not due yet are pinned to one of these."""
        return sum(pin in names for pin in self._scheduled_pins())

    def _scheduled_pins(self) -> Iterator[str | None]:
        with in_our_words("forget"):
            tickets = self.client.zscan_iter(self.keys.named("scheduled"), count=PAGE)
            while page := list(islice(tickets, PAGE)):
                with self.client.pipeline(transaction=False) as pipe:
                    for ticket, _ in page:
                        pipe.hget(self.keys.named("ticket", ticket), "pin")
                    yield from pipe.execute()
