"""What is known of a run of the demo: what the jobs wrote down, and what the ledger says.

All times are seconds of CLOCK_MONOTONIC, which is one for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.ledger.connection import in_our_words
from celery_gpulease.ledger.views import gpu_rows, pool_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_gpulease.ledger import Ledger

#: Measurements of the distance between the server's clock and ours: the quickest is the most exact.
LOOKS: Final = 5


@dataclass(frozen=True)
class Run:
    """One execution of a job's body, as the job itself wrote it down.

    Attributes:
        end: None where it never came to its end: its process was killed.
        is_finished: It came to its end, and without an error.
    """

    job: str
    name: str
    gpu: str
    index: int
    fence: int
    pid: int
    start: float
    end: float | None = None
    is_finished: bool = False


@dataclass(frozen=True)
class Wait:
    """A job has been in line since then: it was sent, or went back to its place."""

    job: str
    since: float


class Journal:
    """A file to which every job adds a line when its body begins, and one when it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def run(self, task: Any, name: str) -> Iterator[None]:
        """Writes down that this task runs, and how it ends."""
        run = uuid.uuid4().hex
        fields = {"job": task.request.id, "name": name, "fence": task.lease.fence, "pid": os.getpid()}
        self._add(run=run, start=time.monotonic(), gpu=task.gpu.id, index=task.gpu.index, **fields)
        is_finished = False
        try:
            yield
            is_finished = True
        finally:
            self._add(run=run, end=time.monotonic(), is_finished=is_finished)

    def runs(self) -> list[Run]:
        """All runs, in the order of their starts."""
        found: dict[str, Run] = {}
        text = self.path.read_text() if self.path.exists() else ""
        for line in text[: text.rfind("\n") + 1].splitlines():
            entry = json.loads(line)
            run = entry.pop("run")
            found[run] = replace(found[run], **entry) if run in found else Run(**entry)
        return sorted(found.values(), key=lambda run: run.start)

    def _add(self, **entry: Any) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, json.dumps(entry).encode() + b"\n")  # one write: lines of two processes do not mix
        finally:
            os.close(file)


class Witness:
    """What the ledger says: reads only."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._client, self._keys = ledger, ledger.client, ledger.keys
        self._clock = min(self._look_at_clock() for _ in range(LOOKS))[1]

    def id_of(self, gpu: str) -> str:
        """The id of a GPU that is known by another name; that name itself while it is not registered."""
        with in_our_words("demo"):
            return str(self._client.hget(self._keys.named("names"), gpu) or gpu)

    def is_served_by(self, gpu: str, pid: int) -> bool:
        """Does this process serve the GPU now? As the ledger decides it: by its presence and its subscription."""
        with in_our_words("demo"):
            presence = self._client.get(self._keys.named("worker", gpu))
            listeners = self._client.pubsub_numsub(self._keys.here(gpu))[0][1]
        return bool(presence and listeners and json.loads(str(presence))["pid"] == pid)

    def waits(self) -> list[Wait]:
        """Every time that a job joined the line, or went back to it."""
        with in_our_words("demo"):
            entries = self._client.xrange(self._keys.named("journal"))
        return [
            Wait(entry["task_id"], int(number.partition("-")[0]) / 1000 - self._clock)
            for number, entry in entries
            if entry["what"] in ("held", "requeued")
        ]

    def leftovers(self) -> list[str]:
        """What is not as it should be when all is done: GPUs that are not free, tasks that still wait."""
        gpus = gpu_rows(self._ledger)
        pools = pool_rows(self._ledger, gpus).items()
        waiting = [
            f"{row.pending + row.scheduled} waiting in pool {name}"
            for name, row in pools
            if row.pending + row.scheduled
        ]
        return waiting + [f"{gpu.id} is {gpu.state}" for gpu in gpus if gpu.state != "free"]

    def _look_at_clock(self) -> tuple[float, float]:
        """How long the answer took, and the server's clock minus ours."""
        asked = time.monotonic()
        with in_our_words("demo"):
            seconds, microseconds = self._client.time()
        answered = time.monotonic()
        return answered - asked, seconds + microseconds / 1e6 - (asked + answered) / 2


def wipe(ledger: Ledger, prefix: str) -> None:
    """Removes every key of one run of the demo, and nothing else."""
    with in_our_words("demo"):
        for key in ledger.client.scan_iter(prefix + "*", count=1000):
            ledger.client.delete(key)
