"""What a killed task leaves behind: programs that it started, and that may still use the GPU.

Each process of the pool leads a process group, and is killed with it. What has left that group (`setsid`) is not ours
to kill: the GPU is quarantined until it is gone, and so it is where the kernel cannot end a process now. It is known by
its environment, which names the run; on Linux only. What a task leaves behind that ends well is the user's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from celery.utils.log import get_logger

from celery_gpulease.facts import facts
from celery_gpulease.worker.processes import is_gone, living, realm

if TYPE_CHECKING:
    from collections.abc import Collection

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.model import Presence
    from celery_gpulease.worker.gpu_worker import Execution
    from celery_gpulease.worker.processes import Process

logger = get_logger(__name__)

#: In the environment of whatever a run starts: its token.
RUN: Final = "GPULEASE_RUN"
#: Seconds after which a process that was killed hangs in the kernel.
LONGEST_KILL: Final = 1.0


def lead_group() -> None:
    """This process, of the pool, and what it starts are one process group.

    Only where its worker's death ends it too (Linux), since who kills the worker's group does not reach it any more.
    Ctrl-C does not either: Celery's pool ignores it, main answers.
    """
    if sys.platform == "linux":
        os.setpgid(0, 0)


def mark(token: str | None) -> None:
    """What this process starts from now on is of this run; of none where it is None."""
    if token is not None:
        os.environ[RUN] = token
    else:
        os.environ.pop(RUN, None)


class Leftovers:
    """What killed tasks have left on the GPU of this worker. The heartbeat's thread asks.

    Args:
        ledger: The ledger.
        gpu: That this worker serves.
    """

    def __init__(self, ledger: Ledger, gpu: str) -> None:
        self._ledger, self._gpu = ledger, gpu

    def are_ended(self, execution: Execution) -> bool:
        """Is nothing left of a run that was killed, or only what closes the GPU from now on?

        Raises:
            LedgerUnavailable: Redis does not answer; nothing is known then.
        """
        if execution.pid is None:
            return True
        if not is_gone(execution.pid):
            return False
        execution.gone_since = execution.gone_since or time.monotonic()
        kill_group(execution.pid)
        left = find([execution.pid], execution.claim.token)
        if execution.pid in (one.group for one in left) and time.monotonic() - execution.gone_since < LONGEST_KILL:
            return False
        if left:
            quarantine(self._ledger, self._gpu, left)
        return True

    def look(self) -> None:
        """Opens the GPU again when all are gone; a worker before this one, or a neighbour, may have closed it.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        told = self._ledger.left(self._gpu)
        if told and not is_any_left(told):
            self._ledger.quarantine(self._gpu, "what was left there is gone", "")


def end_left_by(ledger: Ledger, gpu: str, dead: Presence) -> None:
    """Ends what a worker has left whose processes are gone; what cannot be ended closes its GPU.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    numbers = [pid for pid, _ in dead.children if is_gone(pid)]
    # by now such a number may be another group's: that it is ours is told by what a run of ours has started
    groups = {one.group for one in living() if one.group in numbers and is_marked(one.pid)}
    for group in groups:
        kill_group(group)
    if (token := ledger.holding(gpu)) and (left := [one for one in find((), token) if one.group not in groups]):
        quarantine(ledger, gpu, left)


def quarantine(ledger: Ledger, gpu: str, left: list[Process]) -> None:
    """Closes a GPU while these live."""
    names = ", ".join(f"{one.pid} ({one.name})" for one in left)
    reason = f"a task was killed there, and what it has started still runs: process {names}"
    logger.error("GPU %s is quarantined: %s", gpu, reason, extra=facts(gpu=gpu))
    told = json.dumps({"realm": realm(), "processes": [(one.pid, one.started) for one in left]})
    ledger.quarantine(gpu, reason, told)


def is_any_left(told: str) -> bool:
    """Does any of these processes live? None of a boot, or a container, that is no more."""
    said = json.loads(told)
    return said["realm"] == realm() and not all(is_gone(pid, started) for pid, started in said["processes"])


def kill_group(group: int) -> None:
    """Ends all processes of a group; nothing where there is none."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def find(groups: Collection[int], token: str) -> list[Process]:
    """The living processes of these groups, and those that a run of this token has started."""
    return [one for one in living() if one.group in groups or is_marked(one.pid, token)]


def is_marked(pid: int, token: str | None = None) -> bool:
    """Was this process started by a run, of this token or of any? False where it is another user's."""
    mark = f"{RUN}=" if token is None else f"{RUN}={token}\0"
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended just now; or we may not look
        return False
