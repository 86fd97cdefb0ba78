"""`gpulease run -- CMD`: a program under a lease, as it would be without: its exit code, its signals, its terminal."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import shutil
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from celery_gpulease.devices import show_only
from celery_gpulease.programs.group import ENDING, Group
from celery_gpulease.programs.reserving import give_back, kept
from celery_gpulease.programs.waiting import Waiter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.programs.waiting import Held

#: What is passed on. Ctrl-Z too, since it would put us to sleep, and let the lease lapse: see `Group.wait`.
PASSED_ON: Final = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTSTP)
#: A command's exit code as shells have it: not found, not to be run, and 128 + the number of a signal.
NOT_FOUND, NOT_RUNNABLE, SIGNALLED = 127, 126, 128
#: That of a program which ended well, but after it had lost its lease.
LOST: Final = 1
#: Characters of a command that `status` shows.
SHOWN: Final = 200


class Stopped(BaseException):
    """A signal came before the program had begun."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """What this process is sent, it passes on to the program; before its turn has come it ends the waiting."""

    def __init__(self) -> None:
        self._group: Group | None = None
        self._early: list[int] = []
        self.is_waiting = True

    def __call__(self, number: int, _frame: object) -> None:
        """The handler of each."""
        if self._group is not None:
            self._group.send(number)
        elif self.is_waiting and number in ENDING:
            raise Stopped(number)
        elif not self.is_waiting:
            self._early.append(number)

    def pass_on_to(self, group: Group) -> None:
        """The program runs."""
        self._group = group
        for number in self._early:
            group.send(number)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """For the block. One that is ignored (`nohup`) stays so."""
        before = {number: signal.getsignal(number) for number in PASSED_ON}
        heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
        for number in heard:
            signal.signal(number, self)
        try:
            yield
        finally:
            for number in heard:
                signal.signal(number, before[number] or signal.SIG_DFL)


def run(ledger: Ledger, command: Sequence[str], pool: str, priority: int, timeout: float | None) -> int:
    """Waits for a GPU of this host, runs the command there, and answers with the exit code.

    Args:
        ledger: The ledger.
        command: The program and its arguments.
        pool: Its line.
        priority: As the broker counts.
        timeout: Seconds within which its turn must come; None for whenever.

    Raises:
        GPULeaseError: As `Waiter.wait`.
    """
    if error := _cannot_start(command[0]):
        return _not_started(command[0], error)
    task = as_shown(f"run: {shlex.join(command)}")

    def say_waiting(ticket: str) -> None:
        say(f"waiting for a GPU of pool {pool} on {ledger.settings.host}; `gpulease cancel {ticket}` takes it back")

    logging.basicConfig(format="gpulease: %(message)s")  # to standard error, unless the project has set up its own
    signals = Signals()
    waiter = Waiter(ledger, task, pool, priority, say_waiting)
    with signals.heard():
        try:
            held = waiter.wait(timeout)
            signals.is_waiting = False
        except Stopped as stopped:
            signals.is_waiting = False  # a second one must not keep us from leaving
            with suppress(Stopped):  # it came before that; then a ttl will tell
                waiter.leave()  # it came while we took the turn
            return SIGNALLED + stopped.number
        return _run_on(ledger, held, command, signals)


def _run_on(ledger: Ledger, held: Held, command: Sequence[str], signals: Signals) -> int:
    say(f"GPU {held.device.id}")
    environ = dict(os.environ)
    show_only(held.device, environ)
    try:
        group = Group(command, environ, held.ttl)  # before there is a thread: it forks
    except OSError as error:
        give_back(ledger, held, f"it could not be started: {error.strerror}")
        return _not_started(command[0], error)
    except BaseException:
        give_back(ledger, held, "it could not be started")
        raise

    def stop() -> None:
        say(f"the lease of GPU {held.device.id} is lost: the program is stopped")
        group.stop()

    with kept(ledger, held, stop, group.renewed) as keeper:
        try:
            signals.pass_on_to(group)
            code = group.wait()
        finally:
            group.end()
            if group.was_silent:
                say(f"we were stopped for longer than the lease of GPU {held.device.id}: its program was killed")
        code = code or (LOST if keeper.is_lost else 0)
        keeper.how = f"exit code {code}"
    return code


def _cannot_start(program: str) -> OSError | None:
    """What would keep a program from starting, as far as its name tells: nobody waits for a GPU to hear of that."""
    if shutil.which(program):
        return None
    has_folder = bool(os.path.dirname(program))  # noqa: PTH120  "./x" has one, as a Path it has none
    there = [Path(program)] if has_folder else [Path(folder, program) for folder in os.get_exec_path() if program]
    missing = [error for error in map(_missing, there) if error]
    if len(missing) < len(there):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return missing[0] if has_folder else FileNotFoundError()


def _missing(path: Path) -> OSError | None:
    """Why there is no such file, or none that we may see."""
    try:
        path.stat()
    except OSError as error:
        return error
    return None


def _not_started(program: str, error: OSError) -> int:
    is_missing, is_there = isinstance(error, FileNotFoundError), bool(shutil.which(program))
    words = ("its interpreter was not found" if is_there else "command not found") if is_missing else error.strerror
    say(f"{as_shown(program)}: {words}")
    return NOT_FOUND if is_missing and not is_there else NOT_RUNNABLE


def as_shown(command: str) -> str:
    """A command in one line: on the terminal of whoever looks, it does nothing."""
    return "".join(one if one.isprintable() else "?" for one in " ".join(command.split()))[:SHOWN]


def say(words: str) -> None:
    """Tells people, beside what the program says itself; they may have gone."""
    with suppress(OSError):
        click.echo(f"gpulease: {words}", err=True)
