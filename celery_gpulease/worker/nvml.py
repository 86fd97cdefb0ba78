"""NVML, which knows the GPUs of this host, asked in a process of its own.

NVML is process-wide and does not survive a fork, and the pool forks whenever a child of its ends; a call may hang in
the driver for ever, where nothing ends it, and a worker with such a thread would never end; and a broken device may
take the library's process with it. None of this may happen to main: so it never loads the library.
"""

from __future__ import annotations

import json
import select
import subprocess
import time
from contextlib import closing, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

from celery_gpulease.devices import INDEX, Hardware
from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.worker.beside import answers_of, pipe_of, start_beside

MODULE: Final = "pynvml"
#: By its path: the rest of this package would cost it three times the memory.
PROGRAM: Final = f"import runpy; runpy.run_path({str(Path(__file__).with_name('nvml_process.py'))!r}, None, '__main__')"
#: Seconds until NVML is given up for hanging. Its first answer may take several: the driver wakes up.
LONGEST_ANSWER: Final = 15.0
#: Seconds that the process gets to end when it was killed.
LONGEST_END: Final = 1.0


class NVML:
    """Asks, and never waits for long. Not for two threads at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_given_up = False

    def ask(self, *question: str) -> dict[str, Any]:
        """The answer, as `nvml_process` says it; whatever goes wrong is its `error`, in words."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = start_beside(PROGRAM)
            self._is_given_up = False
        elif self._is_given_up:  # it was killed, and the kernel cannot end it: another one would hang too
            return {"error": "it still hangs"}
        try:
            pipe_of(process).write(" ".join(question).encode() + b"\n")
            line = read_line(answers_of(process), LONGEST_ANSWER)
        except (OSError, ValueError):  # it has ended in this moment, or was closed
            line = b""
        if line is None:
            self.close()
            return {"error": f"no answer for {LONGEST_ANSWER:g} s"}
        if not line:
            self.close()
            return {"error": "the process that asks it has ended, and the log says more"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process, or leaves it to the kernel where that cannot."""
        process = self._process
        if process is None:
            return
        self._is_given_up = True
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # it hangs in the driver
            process.wait(LONGEST_END)
            pipe_of(process).close()
            answers_of(process).close()


def read_line(pipe: IO[bytes], seconds: float) -> bytes | None:
    """The next line; empty where there will be none, None where it does not come in time."""
    line, deadline, poll = b"", time.monotonic() + seconds, select.poll()
    poll.register(pipe, select.POLLIN)
    while not line.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        if not (chunk := pipe.read(65536)):
            return b""
        line += chunk
    return line


@cache
def found_devices() -> tuple[Hardware, ...] | None:
    """The devices of this host; None where there is no NVML: no module, no library, or no driver.

    Raises:
        ConfigurationError: NVML is there, and fails.
    """
    if find_spec(MODULE) is None:
        return None
    with closing(NVML()) as nvml:
        answer = nvml.ask("list")
    if "missing" in answer:
        return None
    if "error" in answer:
        message = (
            f"NVML does not tell the GPUs of this host: {answer['error']}. See what nvidia-smi says; or uninstall "
            "nvidia-ml-py, and GPUs go by their index"
        )
        raise ConfigurationError(message)
    return tuple(map(hardware, answer["devices"]))


def hardware(told: dict[str, Any]) -> Hardware:
    """A device, as the process says it."""
    index = told["index"]
    if "error" in told:
        return Hardware(index, trouble=f"NVML says: {told['error']}")
    cure = f"MIG is on, and a lease is one whole GPU: switch it off (nvidia-smi -i {index} -mig 0)"
    trouble = cure if told["has_mig"] else ""
    return Hardware(index, told["uuid"], told["model"], told["memory_bytes"], trouble)


def index_of(name: str) -> int | str:
    """The index of the device that `--gpu` names, for the worker's name; where there is none, what was said.

    Such a worker does not start: its bootstep asks the same, and says why.
    """
    if INDEX.fullmatch(name):
        return int(name)
    try:
        found = found_devices() or ()
    except ConfigurationError:
        found = ()
    return next((one.index for one in found if one.is_named(name)), name)
