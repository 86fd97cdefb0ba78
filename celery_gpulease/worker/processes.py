"""Whether the processes of a worker are certainly gone, as far as the kernel tells us: it does so on Linux only.

"Not certainly dead" and "not certainly alive" are no contradiction: of a worker on another host, or in another
container, we know nothing, and its presence in Redis decides.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.model import Presence

#: In /proc/<pid>/status: the process's pid in the namespace of this /proc, then in those below, down to its own.
_PIDS: Final = re.compile(r"^NSpid:\s+(\d+)$", re.MULTILINE)

#: Of a Linux kernel (`PROC_PID_INIT_INO` in its include/linux/proc_ns.h).
_FIRST_NAMESPACE: Final = "pid:[4026531836]"


def realm() -> str:
    """Where a pid and a start time mean the same to whoever reads them: one boot, one pid and one time namespace.

    Empty where that cannot be read, or where /proc shows the processes of another namespace than ours.
    """
    try:
        mine = _PIDS.search(Path("/proc/self/status").read_text())
        if mine is None or int(mine[1]) != os.getpid():
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return " ".join([boot, str(Path("/proc/self/ns/pid").readlink()), _time_namespace()])
    except OSError:
        return ""


def _time_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/time").readlink())
    except FileNotFoundError:  # before Linux 5.6 there is only one
        return ""


def started_at(pid: int) -> int:
    """When a process began, in the kernel's ticks since the boot; 0 where that cannot be read."""
    try:
        return _stat(pid).started
    except OSError:
        return 0


def child_pids(pool: Any) -> list[int]:
    """The processes of a pool, from what it tells `inspect stats`; none unless it runs."""
    pids = pool.info.get("processes", ()) if pool.active else ()
    return [pid for pid in pids if pid not in (None, os.getpid())]


def is_gone(pid: int, started: int = 0) -> bool:
    """Is this process over? A zombie counts as over.

    Args:
        pid: Of the process.
        started: When it began; with 0 another process of the same pid passes for it.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # somebody else's
        pass
    try:
        found = _stat(pid)
    except OSError:  # it may have ended just now; or we may not look: /proc hides, or there is none
        return False
    return found.is_over or started not in (0, found.started)


def name_of(pid: int) -> str:
    """The name of its program; empty where that cannot be read."""
    try:
        return _stat(pid).name
    except OSError:
        return ""


def descends(pid: int, ancestor: int) -> bool:
    """Is this process the other one, or was it started by it, or by what that has started?"""
    with suppress(OSError):  # one has just ended, or we may not look
        while pid not in (0, ancestor):
            pid = _stat(pid).parent
    return pid == ancestor


def sees_all() -> bool:
    """Is every process of this machine visible here? In a container of its own pid namespace that is not so."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_NAMESPACE
    except OSError:
        return False


def living() -> Iterator[Process]:
    """The processes that we see, and that are not over; none where the kernel does not tell."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if not (found := _stat(int(entry.name))).is_over:
                yield found


@dataclass(frozen=True)
class Process:
    """A process, as the kernel tells of it.

    Attributes:
        pid: Its number.
        name: Of its program.
        parent: The process that has started it, or has inherited it.
        group: Its process group.
        started: When it began, in ticks since the boot.
        is_over: It is a zombie, and waits for none of its threads, of which one may hang in a driver.
    """

    pid: int
    name: str
    parent: int
    group: int
    started: int
    is_over: bool


def _stat(pid: int) -> Process:
    """The fields 2 to 5, 20 and 22 of proc(5), of which the name may contain anything."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").partition("(")[2].rpartition(") ")
    fields = rest.split()
    is_over = fields[0] in "ZX" and int(fields[17]) <= 1
    return Process(pid, name, int(fields[1]), int(fields[2]), int(fields[19]), is_over)


def is_certainly_dead(presence: Presence) -> bool:
    """Are all processes that this worker has named gone, and can we know?

    A program that its task started may live on: see `celery_gpulease.worker.leftovers`.
    """
    return _is_within_sight(presence) and all(is_gone(pid, started) for pid, started in _processes_of(presence))


def open_living(presence: Presence) -> int | None:
    """A descriptor that becomes readable when the process ends: of the first process of this worker that lives.

    None where we see none that lives, or where the kernel gives no such thing (`pidfd_open`, from Linux 5.3).
    """
    for pid, started in _processes_of(presence) if _is_within_sight(presence) and hasattr(os, "pidfd_open") else ():
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        if not is_gone(pid, started):  # asked now: this number is not given to another process while it is open
            return pidfd
        os.close(pidfd)
    return None


def is_certainly_alive(presence: Presence) -> bool:
    """Does this worker's main process run, and can we know?

    Not where it is our own: Celery's restart by SIGHUP puts a new worker into the process of the old one.
    """
    is_another = presence.started != 0 and presence.pid != os.getpid()
    return _is_within_sight(presence) and is_another and not is_gone(presence.pid, presence.started)


def _processes_of(presence: Presence) -> tuple[tuple[int, int], ...]:
    return ((presence.pid, presence.started), *presence.children)


def _is_within_sight(presence: Presence) -> bool:
    return presence.realm != "" and presence.realm == realm()
