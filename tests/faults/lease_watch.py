"""Was a GPU free before its task was done with it? A thread looks at every lease, from outside the product."""

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import redis

#: Seconds between two looks; an error that lasts for less is not seen.
LOOK_EVERY = 0.004


@dataclass
class Watched:
    """One run, as the tasks' journal tells it, and what was so in the moment when its lease was seen to be gone.

    Attributes:
        lines: What it has noted by then: `start`, `end`, and what else its task announces.
        is_gone: Its process was gone by then.
    """

    start: dict
    lines: list[dict] = field(default_factory=list)
    is_gone: bool = False

    @property
    def is_done(self) -> bool:
        """Had it noted its last line?"""
        return self.start["last"] in {line["what"] for line in self.lines}

    @property
    def how(self) -> str | None:
        """How its body had ended."""
        return next((line["how"] for line in self.lines if line["what"] == "end"), None)


class LeaseWatch(threading.Thread):
    """Watches each run from its start line until its fence is not in its GPU's lease any more.

    What it reads first can only be too old, and it reads the journal once more after the lease: so it never accuses
    wrongly. A run whose lease vanished is in `freed`.
    """

    def __init__(self, url: str, journal: Path) -> None:
        super().__init__(name="lease-watch", daemon=True)
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self._journal, self._read_to = journal, 0
        self._open: dict[str, Watched] = {}
        self.freed: list[Watched] = []
        self._is_over = threading.Event()

    def run(self) -> None:
        """Looks until it is stopped."""
        while not self._is_over.wait(LOOK_EVERY):
            self._read_on()
            if self._open:
                self._look()
        self._client.close()

    def stop(self) -> None:
        """Ends the thread."""
        self._is_over.set()
        self.join()

    def freed_of(self, task: str) -> list[Watched]:
        """The runs of a task whose leases have gone."""
        return [run for run in self.freed if run.start["task"] == task]

    def _look(self) -> None:
        runs = list(self._open.items())
        tokens = self._client.mget([f"gpu:lease:{run.start['gpu']}" for _, run in runs])
        self._read_on()
        for (run_id, run), token in zip(runs, tokens, strict=True):
            if token is None or not token.endswith(f"-{run.start['fence']}"):
                run.is_gone = is_gone(run.start["pid"])
                self.freed.append(self._open.pop(run_id))

    def _read_on(self) -> None:
        if not self._journal.exists():
            return
        with self._journal.open("rb") as file:
            file.seek(self._read_to)
            for text in file:
                if not text.endswith(b"\n"):
                    break
                self._read_to += len(text)
                self._take(json.loads(text))

    def _take(self, line: dict) -> None:
        if line["what"] == "start" and line["gpu"]:
            self._open[line["run"]] = Watched(line)
        elif line.get("run") in self._open:
            self._open[line["run"]].lines.append(line)


def is_gone(pid: int) -> bool:
    """Does this process hold no GPU any more? One that only waits to be reaped has given back all that it had."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True
