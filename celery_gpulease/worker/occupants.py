"""Who uses a GPU that should be free: a stranger without a lease, or what a dead holder has left.

A worker may keep a model in the memory of its pool's process between tasks: its own processes are none of these. Where
it sees all processes of the machine NVML lists each one that uses the device. In a container NVML lists those of the
container, or none, or by numbers that mean nothing there: then the memory tells, for as long as no process of the
worker's own, which is not listed either, may keep it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.worker.processes import descends, is_gone, name_of, sees_all

if TYPE_CHECKING:
    from collections.abc import Collection

MIB: Final = 1 << 20
#: Bytes in use that need no process: what the driver keeps for itself, a screen. A program that computes takes more.
UNEXPLAINED: Final = 1 << 30
#: It shares a device among processes, and uses none for itself.
SHARES: Final = "nvidia-cuda-mps"


@dataclass(frozen=True)
class Occupant:
    """A process that NVML lists, and that lives here; `used` are bytes, None where NVML does not tell."""

    pid: int
    used: int | None

    def __str__(self) -> str:
        """For people."""
        used = "" if self.used is None else f", {self.used // MIB} MiB"
        return f"process {self.pid} ({name_of(self.pid) or 'of another user'}{used})"


def trouble_of(told: dict[str, Any], has_run: Collection[int]) -> tuple[str, bool]:
    """What is wrong with a device that should be free, in words, or ''; and may that be over in a moment?

    Args:
        told: How it is, as `nvml_process` says it.
        has_run: The processes of this worker in which tasks have run.
    """
    if error := told.get("error") or told.get("missing"):
        return f"the device is not well, NVML says: {error}", False
    if told["listed"] is None:
        return "", False
    seen = [Occupant(pid, used) for pid, used in told["listed"] if not is_gone(pid)]
    if strangers := [one for one in seen if one.pid in told["computing"] and not is_harmless(one.pid)]:
        return f"something else uses it: {', '.join(map(str, strangers))}", True
    listed = {one.pid for one in seen}
    may_be_ours = not sees_all() and any(pid not in listed and not is_gone(pid) for pid in has_run)
    unexplained = 0 if may_be_ours else unexplained_bytes(told["used_bytes"], seen)
    if unexplained > UNEXPLAINED:
        return f"something else uses it: {unexplained // MIB} MiB are taken, by no process that is seen here", True
    return "", False


def is_harmless(pid: int) -> bool:
    """Is this a process of this worker's, or one that only passes on what others do?"""
    return descends(pid, os.getpid()) or name_of(pid).startswith(SHARES)


def unexplained_bytes(used: int | None, seen: list[Occupant]) -> int:
    """What is in use beyond what these processes use; 0 where that is not told."""
    told = [one.used for one in seen]
    if used is None or None in told:
        return 0
    return used - sum(bytes_ for bytes_ in told if bytes_ is not None)
