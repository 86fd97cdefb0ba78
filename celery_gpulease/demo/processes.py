"""The demo's processes: real workers and a real beat, which never outlive the demo, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

STOP_SECONDS: Final = 8.0
LAST_LINES: Final = 15

# As in embedded.py: the shell becomes the process and leaves a guard behind, which reads a pipe whose only writer is
# the demo. A line means that the process ended in order, end-of-file that the demo is gone: then the whole group is
# killed, the guard with it. $0 is the demo's folder, $$ the group.
GUARDED: Final = """
exec 3<&0 </dev/null
(read -r word <&3 || { rm -rf "$0"; kill -9 -$$; }) >/dev/null 2>&1 &
exec "$@" 3<&-
"""


@dataclass
class Process:
    """A Celery process and all that it forks: one process group."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    popen: subprocess.Popen[bytes]
    lifeline: int

    @property
    def pid(self) -> int:
        """Of the main process, and of the group."""
        return self.popen.pid

    @property
    def has_ended(self) -> bool:
        """Is it gone?"""
        return self.popen.poll() is not None

    def kill(self) -> None:
        """SIGKILL for the main process and its children, at once; when this returns, they are gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()
        self._let_go()

    def terminate(self) -> None:
        """Asks it to end, as a service manager does."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.terminate()

    def wait(self, deadline: float) -> None:
        """Waits until it has ended; kills it at the deadline."""
        try:
            self.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
        self._let_go()

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])

    def _let_go(self) -> None:
        if self.lifeline < 0:
            return
        with contextlib.suppress(BrokenPipeError):  # the guard was killed with its group
            os.write(self.lifeline, b"\n")
        os.close(self.lifeline)
        self.lifeline = -1


class Processes:
    """All of them, each with a log of its own.

    Args:
        project: What `celery -A` names.
        folder: For the logs; removed by the guards if the demo itself is killed.
        environ: The processes' environment.
    """

    def __init__(self, project: str, folder: Path, environ: Mapping[str, str]) -> None:
        self._project, self._folder, self._environ = project, folder, environ
        self._all: dict[str, Process] = {}

    def start(self, name: str, *arguments: str) -> Process:
        """Starts `celery -A <project> <arguments>`, or starts it again after its end."""
        held, lifeline = os.pipe()
        command = [sys.executable, "-m", "celery", "-A", self._project, *arguments]
        path = self._folder / f"{name}.log"
        with path.open("ab") as log, os.fdopen(held, "rb") as guard:
            popen = subprocess.Popen(
                ["/bin/sh", "-c", GUARDED, str(self._folder), *command],
                stdin=guard,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,  # a group of its own; and Ctrl-C is for the demo, which then stops it
            )
        self._all[name] = Process(name, arguments, path, popen, lifeline)
        return self._all[name]

    def ended(self) -> list[Process]:
        """Those that should run and do not."""
        return [one for one in self._all.values() if one.has_ended]

    def stop(self) -> None:
        """Asks all of them to end, and sees to it that they do."""
        for one in self._all.values():
            one.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for one in self._all.values():
            one.wait(deadline)

    def kill(self) -> None:
        """Ends all of them at once."""
        for one in self._all.values():
            one.kill()

    def last_words(self) -> list[str]:
        """The end of every log, for people."""
        return [f"--- {one.name}\n{one.last_words()}" for one in self._all.values()]
