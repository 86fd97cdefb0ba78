"""What whoever wants to run a program asks of the ledger; from START on, a program is asked for as a task is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_gpulease.ledger.calls import Calls
from celery_gpulease.model import Claim

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Program:
    """A program that shall run on a GPU of this host: its ticket has no message.

    Attributes:
        ticket: Made by whoever waits; also the id by which people name it.
        task: What it is, as `status` shows it.
        host: On whose GPUs it may run.
        pool: Its line.
        priority: The broker's, in its direction.
    """

    ticket: str
    task: str
    host: str
    pool: str
    priority: int


@dataclass(frozen=True)
class Turn:
    """What has become of a program's turn.

    Attributes:
        word: 'waiting', 'claimed' (START it), 'ended' (it was cancelled), or 'unserved' (no GPU of its host is known to
            serve its pool; said before it stands in line only).
        score: Its place, for the next call.
        claim: Of the GPU that it has.
        index: Of that GPU.
        ttl: Seconds that its lease outlives a renewal: as that GPU's worker has it.
        served: Where it is unserved, the GPUs of its host, and the pools that they serve.
    """

    word: str
    score: str = ""
    claim: Claim | None = None
    index: int = 0
    ttl: float = 0.0
    served: Mapping[str, str] | None = None


def host_and_pool(pin: str) -> tuple[str, str] | None:
    """What the pin of a program names (lua/include/line.lua); None for a GPU's, or for none."""
    host, slash, pool = pin.partition("/")
    return (host, pool) if slash else None


class Turns(Calls):
    """The operation of whoever waits."""

    def attend(self, program: Program, score: str, *, is_back: bool = False) -> Turn:
        """Says that somebody still waits to run a program, at least each heartbeat, and takes a GPU that is free.

        Whoever asks listens to the program's `here` channel before: a claim takes for dead who does not.

        Args:
            program: What shall run.
            score: Its place, as the last answer named it; empty at first.
            is_back: It was cut off just now, and Redis may have forgotten what runs on GPUs without a worker.
        """
        word, *found = self._claiming(
            "attend",
            ticket=program.ticket,
            task=program.task,
            host=program.host,
            pool=program.pool,
            priority=self.rank(program.priority),
            score=score,
            ttl_ms=round(self.settings.lease_ttl * 1000),
            is_back=int(is_back),
        )
        if word == "claimed":
            return Turn(word, score, *_claimed(program.ticket, found))
        if word == "unserved":
            return Turn(word, served=dict(zip(found[::2], found[1::2], strict=True)))
        return Turn(word, str(found[0]) if found else score)


def _claimed(ticket: str, found: list[Any]) -> tuple[Claim, int, float]:
    gpu, index, token, fence, delivery, ttl_ms = found
    return Claim(ticket, gpu, token, int(fence), int(delivery)), int(index), int(ttl_ms) / 1000
