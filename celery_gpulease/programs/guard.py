"""The guard of a program: a process beside `gpulease run`, which kills the program's group where that one cannot.

It is run by its path, by an interpreter that has none of us, so that it is there in a moment. Over a pipe it is told, a
line each, the group; then, again and again, until when that group may run unless it is told otherwise (by the monotonic
clock, which all processes of a host share); and 'over'. The pipe ends with who holds its other end.
"""

import os
import select
import signal
import time
from contextlib import suppress

#: The exit code of a guard that has killed, as it was told nothing for too long.
SILENT = 3


def main() -> None:
    """Waits for the end, or makes it."""
    group, until, told = 0, None, b""
    while select.select([0], [], [], until and max(0.0, until - time.monotonic()))[0]:
        heard = os.read(0, select.PIPE_BUF)
        if not heard:
            _kill(group)
            return
        *lines, told = (told + heard).split(b"\n")
        for line in lines:
            if line == b"over":
                return
            group, until = (group, float(line)) if group else (int(line), None)
    _kill(group)
    raise SystemExit(SILENT)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        if group:  # else nothing was started
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
