"""The companion: a process beside main that beats while a task keeps main from beating.

In `solo` and `threads` a task runs in main's own process, and whoever holds the GIL for long (a C extension that does
not let it go) stops every other thread there, the heartbeat's too. So for these pools a fresh process renews the lease
of what runs, and reports presence, by the same operations of the ledger. It is told over a pipe what runs.

It only keeps what is; main decides. Both are told alike that a lease was lost, that Redis has forgotten the GPU, or
that another worker serves it, each time that they ask; the companion does nothing about it, and main acts as soon as
it can. While nothing runs the companion is silent: whether the worker lives is then for main alone to say.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from celery.utils.log import get_logger

from celery_gpulease.loops import Loop
from celery_gpulease.settings import RETRY_EVERY
from celery_gpulease.worker.beside import answers_of, pipe_of, start_beside

if TYPE_CHECKING:
    import subprocess

    from celery_gpulease.model import Claim
    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

#: See `start_beside`.
PROGRAM: Final = "from celery_gpulease.worker.companion_process import main; main()"
#: Seconds that it gets for what it is at, when it is to end.
LONGEST_END: Final = 3.0
#: Seconds that its worker waits for it at the start.
LONGEST_START: Final = 30.0


class Companion(Loop):
    """Starts the process, tells it what runs, and starts it again when it ends.

    This thread waits for the process: so the process, which asks to be killed when the thread that started it ends
    (`PR_SET_PDEATHSIG`), ends with main however main ends.
    """

    def __init__(self, gpu_worker: GPUWorker) -> None:
        super().__init__("companion")
        gpu_worker.companion = self
        self._gpu_worker = gpu_worker
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = threading.Event()

    def wait_until_ready(self) -> None:
        """Waits until the process can beat: before that a task may hold the GIL for longer than the lease lasts."""
        if not self._is_ready.wait(LONGEST_START):
            logger.warning(
                "The process that beats beside main is not ready after %g s: until it is, a task that holds "
                "the GIL may lose its lease",
                LONGEST_START,
            )

    def turn(self) -> float:
        """One life of the process."""
        introduction = self._introduction()
        if introduction is None:
            self.is_over = True
            self._is_ready.set()
            return 0.0
        began = time.monotonic()
        with start_beside(PROGRAM) as process:  # whose end closes the pipe, and waits
            pipe_of(process).write(introduction)
            os.set_blocking(pipe_of(process).fileno(), False)
            self._process = process
            self._tell_all()
            if not self.is_over:
                if answers_of(process).read(1):
                    self._is_ready.set()
                process.wait()
        if not self.is_over:
            code = process.returncode
            logger.error("The process that beats beside main has ended (exit code %s), and is started again", code)
        interval = self._gpu_worker.ledger.settings.heartbeat_interval
        return RETRY_EVERY if time.monotonic() - began > interval else interval

    def begin(self, claim: Claim) -> None:
        """This run has started. Called by the event loop: never blocks."""
        self._tell({"begin": asdict(claim)})

    def end(self, claim: Claim) -> None:
        """This run is settled."""
        self._tell({"end": claim.token})

    def stop(self) -> None:
        """Ends the process for good, before the worker leaves: a late report would bring its presence back."""
        super().stop()
        process = self._process
        if process is not None:
            pipe_of(process).close()
        self.join(LONGEST_END)
        if process is not None and process.poll() is None:
            process.kill()

    def _introduction(self) -> bytes | None:
        """What it must know. It is not on the command line, where everybody could read Redis' password."""
        one = self._gpu_worker
        told = {
            "settings": one.ledger.settings,
            "queue_prefix": one.ledger.queue_prefix,
            "gpu": one.device.id,
            "presence": one.presence,
            "main": os.getpid(),
        }
        try:
            return b64encode(pickle.dumps(told)) + b"\n"
        except Exception as error:  # noqa: BLE001  # whatever the user's own objects raise
            logger.warning(
                "gpulease_redis_options cannot be sent to another process: a task that holds the GIL for longer than "
                "gpulease_lease_ttl loses its lease here: %s",
                error,
            )
            return None

    def _tell_all(self) -> None:
        """What already runs; a run that ends meanwhile may have told its end before this told its beginning."""
        for execution in self._gpu_worker.executions():
            self.begin(execution.claim)
            if execution not in self._gpu_worker.executions():
                self.end(execution.claim)

    def _tell(self, line: dict[str, Any]) -> None:
        process = self._process
        if process is None:
            return  # it is told when it is there
        with suppress(OSError, ValueError):  # it has just ended
            # so short a line is written whole, or not at all where the pipe is full
            if pipe_of(process).write(json.dumps(line).encode() + b"\n") is None:
                process.kill()  # it does not read: another one will
