"""A program and all that it starts: one process group, which ends with it, and with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Final

from billiard.util import set_pdeathsig

from celery_gpulease.programs import guard
from celery_gpulease.worker.processes import living

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What asks a program to end.
ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: Seconds that a program has to end, once it was told to because its lease is lost.
GRACE: Final = 5.0
#: Seconds after which a process that was killed hangs in the kernel, and between two looks at it.
LONGEST_KILL: Final = 5.0
LOOK_EVERY: Final = 0.02

#: Parts of a ttl: after a renewal, for which the program may run though we are not heard; for which our silence is
#: none, also where Redis is away; and between two words.
LASTS: Final = 0.9
PATIENCE: Final = 1 / 3
PACE: Final = 1 / 10


class Group:
    """A running program.

    Args:
        command: The program and its arguments.
        environ: Its environment.
        ttl: Seconds that its lease outlives a renewal, which `renewed` tells: where this process is stopped (SIGSTOP)
            for so long, the guard kills the program before another has the GPU. None where it has no lease.

    Attributes:
        was_silent: The guard did so.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], ttl: float | None = None) -> None:
        self._has_terminal = _is_in_foreground()
        self._renewed_at, self._is_over, self.was_silent = time.monotonic(), Event(), False
        # it is killed by nobody who means us, or the group: a session of its own. PR_SET_PDEATHSIG reaches the program
        # alone, and on Linux only
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__))], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, bufsize=0,
        )  # fmt: skip
        try:
            self._leader = subprocess.Popen(command, env=environ, preexec_fn=self._lead)  # noqa: PLW1509
        except BaseException:
            self._dismiss_guard()
            raise
        self.pid = self._leader.pid
        self._killer = Timer(GRACE, self.send, [signal.SIGKILL])
        self._killer.daemon = True
        self._tell_guard(f"{self.pid}\n")
        if ttl is not None:
            Thread(target=self._speak, args=[ttl], name="gpulease-guarded", daemon=True).start()

    def _lead(self) -> None:
        """In the child, before it becomes the program."""
        os.setpgid(0, 0)
        with suppress(OSError):
            set_pdeathsig(signal.SIGKILL)
        if self._has_terminal:  # who reads the terminal from another group is stopped
            _give_terminal(os.getpid())

    def renewed(self, asked_at: float) -> None:
        """Its lease lasts for a ttl from this moment of the monotonic clock."""
        self._renewed_at = asked_at

    def _speak(self, ttl: float) -> None:
        """Says that we live, whatever Redis does: so no thread that asks it may do this."""
        while not self._is_over.is_set():
            until = max(self._renewed_at + LASTS * ttl, time.monotonic() + PATIENCE * ttl)
            self._tell_guard(f"{until}\n")
            self._is_over.wait(PACE * ttl)

    def wait(self) -> int:
        """Waits for the program's end; its exit code, or 128 + the number of the signal that ended it.

        Ctrl-Z does not put it to sleep: its GPU would sleep with it.
        """
        while True:
            _, status = os.waitpid(self.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                break
            if os.WSTOPSIG(status) == signal.SIGTSTP:
                self.send(signal.SIGCONT)
        self._leader.returncode = os.waitstatus_to_exitcode(status)
        return 128 - self._leader.returncode if self._leader.returncode < 0 else self._leader.returncode

    def send(self, number: int) -> None:
        """Sends a signal to all of them. Who is stopped (SIGTTIN, SIGSTOP) hears what ends it."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)
            if number in ENDING:
                os.killpg(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Asks them to end, and after a while does not ask. Called once."""
        self.send(signal.SIGTERM)
        self._killer.start()

    def end(self) -> None:
        """Leaves none of them: whoever has the GPU next has it alone. One that hangs in a driver is not waited for."""
        until = time.monotonic() + LONGEST_KILL
        self._killer.cancel()
        self.send(signal.SIGKILL)
        while self._is_any_left() and time.monotonic() < until:
            time.sleep(LOOK_EVERY)
        if self._has_terminal:
            _give_terminal(os.getpgrp())
        self._dismiss_guard()

    def _is_any_left(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS says so of zombies
            return False
        # what is left may be zombies, which their parent does not look at
        return sys.platform != "linux" or any(one.group == self.pid for one in living())

    def _dismiss_guard(self) -> None:
        self._is_over.set()
        self._tell_guard("over\n")
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self.was_silent = self._guard.wait() == guard.SILENT

    def _tell_guard(self, words: str) -> None:
        with suppress(BrokenPipeError, ValueError):  # it has ended, or was dismissed just now
            if self._guard.stdin is not None:
                self._guard.stdin.write(words.encode())


def _is_in_foreground() -> bool:
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # another session's terminal
        return False


def _give_terminal(group: int) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])  # else it would stop us
    with suppress(OSError):  # the terminal may be gone
        os.tcsetpgrp(0, group)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
