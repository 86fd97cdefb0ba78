"""The process of the companion: see `celery_gpulease.worker.companion`, which starts it and tells it what runs."""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from billiard.util import set_pdeathsig

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.ledger import Ledger
from celery_gpulease.model import Claim
from celery_gpulease.settings import RETRY_EVERY

if TYPE_CHECKING:
    from celery_gpulease.model import Presence

logger = logging.getLogger(__name__)

#: Bytes that are read at once.
CHUNK: Final = 65536


class Beats:
    """Renews the leases of what runs, and reports presence, at the heartbeat's pace.

    Args:
        ledger: The ledger.
        gpu: The GPU's id.
        presence: Of the worker: its main process, not this one.
    """

    def __init__(self, ledger: Ledger, gpu: str, presence: Presence) -> None:
        self._ledger, self._gpu, self._presence = ledger, gpu, presence
        self._interval = ledger.settings.heartbeat_interval
        self._running: dict[str, Claim] = {}
        self._lost: set[str] = set()
        self._next_beat = 0.0
        self._is_known_away = False

    def hear(self, line: dict[str, Any]) -> None:
        """One line of main's: a run's beginning, or its end."""
        if "end" in line:
            self._running.pop(line["end"], None)
            self._lost.discard(line["end"])
            return
        claim = Claim(**line["begin"])
        self._running[claim.token] = claim

    def seconds_left(self) -> float | None:
        """Until the next beat; None while nothing runs."""
        return max(0.0, self._next_beat - time.monotonic()) if self._running else None

    def beat(self) -> None:
        """One beat; where Redis is away, the next one comes soon."""
        self._next_beat = time.monotonic() + self._interval
        try:
            running = next(iter(self._running.values()))
            if len(self._running) > 1 or self._ledger.beat(running, self._presence) == "unusual":
                self._renew_and_report(running)
            self._is_known_away = False
        except LedgerUnavailable as error:
            self.beat_soon()
            if not self._is_known_away:
                logger.warning("The companion of %s has lost Redis, and tries again: %s", self._presence.worker, error)
            self._is_known_away = True

    def _renew_and_report(self, running: Claim) -> None:
        for token, claim in self._running.items():
            if self._ledger.renew(claim, is_lost=token in self._lost) in ("lost", "robbed"):
                self._lost.add(token)
        self._ledger.report(self._gpu, self._presence, running, self._ledger.settings.lease_ttl / 2)

    def beat_soon(self) -> None:
        """Not now."""
        self._next_beat = time.monotonic() + RETRY_EVERY


class Pipe:
    """Main's end of the talk: lines on our standard input, until it is closed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        self.is_closed = False

    def lines(self, seconds: float | None) -> list[bytes]:
        """The lines that come within the time, None for whenever; none too when it is closed."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return []
        chunk = os.read(self._fd, CHUNK)
        self.is_closed = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return lines


def main() -> None:
    """Beats until main is gone, or closes the pipe."""
    with suppress(OSError):  # Linux only; elsewhere the pipe tells, and `getppid`
        set_pdeathsig(signal.SIGKILL)
    logging.basicConfig(format="[%(asctime)s: %(levelname)s/companion] %(message)s")
    pipe = Pipe(sys.stdin.fileno())
    lines: list[bytes] = []
    while not lines and not pipe.is_closed:
        lines = pipe.lines(None)
    if lines:
        told = pickle.loads(base64.b64decode(lines.pop(0)))  # noqa: S301  # our own main wrote it, nobody else can
        beats = Beats(Ledger(told["settings"], told["queue_prefix"]), told["gpu"], told["presence"])
        os.write(sys.stdout.fileno(), b"\n")  # ready
        keep_beating(beats, pipe, told["main"], lines)


def keep_beating(beats: Beats, pipe: Pipe, main_pid: int, lines: list[bytes]) -> None:
    """Hears and beats in turn. One thread is enough: the pipe is long, and its lines are short."""
    while not pipe.is_closed and os.getppid() == main_pid:
        for line in lines:
            beats.hear(json.loads(line))
        if beats.seconds_left() == 0:
            if is_stopped(main_pid):
                beats.beat_soon()
            else:
                beats.beat()
        lines = pipe.lines(beats.seconds_left())


def is_stopped(pid: int) -> bool:
    """Is this process frozen (SIGSTOP)? It then holds no GIL: it does not work, and its lease lapses as in prefork."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt"
    except OSError:  # it has ended, or there is no /proc here
        return False
