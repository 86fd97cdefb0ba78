"""A server's clock of its own: libfaketime tells it, and nobody else, another time.

::

    clock = Clock(folder)
    with EmbeddedServer(binary=clock.binary(server)):    # Debian's redis-server does not bear the library
        clock.step(3600)                                 # at once, however often the server starts again
"""

import time
from pathlib import Path

LIBRARY = "libfaketimeMT.so.1"
PLACES = [*Path("/usr/lib").glob(f"*/faketime/{LIBRARY}"), *Path("/usr/lib").glob(f"faketime/{LIBRARY}")]

#: The shell becomes the server, which reads the file at every look.
UNDER_IT = """#!/bin/sh
export LD_PRELOAD="{library}" FAKETIME_TIMESTAMP_FILE="{clock}" FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1
exec "{server}" "$@"
"""


def is_installed() -> bool:
    """Is Debian's package there?"""
    return bool(PLACES)


class Clock:
    """What the server is told: our time, and so many seconds more."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._offset = folder, 0.0
        self._steps: list[tuple[float, float]] = []
        self.set(0)

    def binary(self, server: str) -> str:
        """What starts this server under the clock."""
        script = self._folder / "server-under-a-clock"
        script.write_text(UNDER_IT.format(library=PLACES[0], clock=self._folder / "clock", server=server))
        script.chmod(0o755)
        return str(script)

    def set(self, offset: float) -> None:
        """In one step: it is so much ahead of ours from now on."""
        new = self._folder / "clock.new"
        new.write_text(f"{offset:+.0f}")
        self._offset = offset
        self._steps.append((time.time() + offset, offset))
        new.rename(self._folder / "clock")

    def step(self, seconds: float) -> None:
        """One more step, from where it is."""
        self.set(self._offset + seconds)

    def local(self, at: float) -> float:
        """What our clock said when the server's said this; for a clock that was never set back."""
        return at - next((offset for first, offset in reversed(self._steps) if at >= first), 0.0)
