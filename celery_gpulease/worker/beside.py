"""Processes of ours beside a worker's main process: a fresh interpreter each, that main's signals do not reach."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import IO, Final

from celery_gpulease.worker.leftovers import RUN

#: Started so, and not by `-m`, since the working directory, where a project may have a celery.py, must not come first.
_HEAD: Final = "import sys; sys.path = [*filter(None, sys.path), *sys.argv[1:]]; "
#: Ctrl-C, and a service manager's stop, reach the whole group: main answers them.
MAINS_SIGNALS: Final = {signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP}


def start_beside(program: str) -> subprocess.Popen[bytes]:
    """Starts a process that we talk with through pipes; it ends when they are closed.

    Args:
        program: Python, which may import whatever we may.
    """
    # it inherits what we block: so not even its first moment is open to Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, MAINS_SIGNALS)
    try:
        command = (sys.executable, "-c", _HEAD + program, *filter(None, sys.path))
        env = {name: value for name, value in os.environ.items() if name != RUN}  # it is no program of the task's
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pipe_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    """What it hears."""
    assert process.stdin is not None  # noqa: S101
    return process.stdin


def answers_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    """What it says."""
    assert process.stdout is not None  # noqa: S101
    return process.stdout
