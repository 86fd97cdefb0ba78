"""Real processes for tests: each in a session of its own, with its output in files, and gone when the test ends.

::

    with Processes(folder, cwd=project, env={"REDIS_URL": url}) as processes:
        worker = processes.worker("proj", 0, "--gpu-pools", "a100")   # waits until it is ready
        processes.run("python", "send.py").output                     # waits until it has ended, exit code 0
        worker.kill()                                                  # main and children, as a power cut does
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psutil

from tests.waiting import wait_until

READY_SECONDS = 60.0  # Celery's start on two cores that others use too
END_SECONDS = 60.0

# As in celery_gpulease/embedded.py: the shell becomes the command, and leaves a guard behind that ends the session when
# the test's own process is gone, however it went. The guard is nobody's child, so that a worker never meets it.
GUARDED = """
exec 3<&0 </dev/null
( (read -r word <&3; kill -9 -$$) >/dev/null 2>&1 & )
exec "$@" 3<&-
"""


class Process:
    """A process, all that it started, and what they said."""

    def __init__(self, name: str, command: tuple[str, ...], folder: Path, cwd: Path, env: Mapping[str, str]) -> None:
        self.command = command
        self.name, self._out, self._err = name, folder / f"{name}.out", folder / f"{name}.err"
        held, self._lifeline = os.pipe()
        with self._out.open("ab") as out, self._err.open("ab") as err, os.fdopen(held, "rb") as lifeline:
            self._popen = subprocess.Popen(
                ["/bin/sh", "-c", GUARDED, "guarded", *command],
                stdin=lifeline, stdout=out, stderr=err, cwd=cwd, env=env, start_new_session=True,
            )  # fmt: skip
        self.pid = self._popen.pid

    @property
    def output(self) -> str:
        """What it printed."""
        return self._out.read_text(errors="replace")

    @property
    def log(self) -> str:
        """What it logged: its standard error."""
        return self._err.read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._popen.poll()

    def children(self) -> list[int]:
        """The pids that it started and that still run: a prefork pool's children."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [one.pid for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    def wait_for_log(self, words: str, seconds: float = READY_SECONDS) -> None:
        """Waits until the words are in its log; where it ends first, the test fails at once and shows what it said."""
        try:
            wait_until(lambda: words in self.log or self.exit_code is not None, seconds, "a line")
        except AssertionError:
            raise AssertionError(f"Waited {seconds:g} s in vain for {words!r} from {self.tell()}") from None
        assert words in self.log, f"{self!r} ended without {words!r}"

    def wait(self, seconds: float = END_SECONDS) -> int:
        """Waits until it has ended; its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(seconds)
        raise AssertionError(f"Still there after {seconds} s: {self!r}")

    def send(self, number: signal.Signals) -> None:
        """Sends the main process a signal: SIGTERM is a worker's warm shutdown, SIGQUIT its cold one."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Ends the whole session as `kill -9` does, its guard included, and whatever it still starts meanwhile."""
        wait_until(lambda: not self._kill_session(), END_SECONDS, f"the session of {self.name} to end")
        self._popen.wait()

    def close(self) -> None:
        """Leaves nothing of it behind."""
        if self._lifeline >= 0:
            self.kill()
            os.close(self._lifeline)
            self._lifeline = -1

    def _kill_session(self) -> list[int]:
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(pid) == self.pid and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    os.kill(pid, signal.SIGKILL)
                    found.append(pid)
        return found

    def tell(self) -> str:
        """What is known of it: its state, what it said, and where its threads are, as a worker tells it."""
        if self.exit_code is not None:
            return repr(self)
        if "worker" in self.command:
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(1)  # a test has failed already: nothing depends on it
        return f"{self.name}, which is {psutil.Process(self.pid).status()}: {self.log[-20000:]}"

    def __repr__(self) -> str:
        """For a test's message: all that it said."""
        return f"{self.name} (exit code {self.exit_code}), which said:\n{self.output}\n{self.log}"


class Processes:
    """Starts processes in one folder with one environment, and ends them all.

    Args:
        folder: Where their output goes (`tmp_path`).
        cwd: Where they run: the project.
        env: Beside the test's own environment, of which nothing that would steer Celery or the GPUs is passed on.
    """

    def __init__(self, folder: Path, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self._folder, self._cwd = folder, cwd
        self._env = {
            name: value for name, value in os.environ.items() if not name.startswith(("CELERY", "CUDA", "GPU"))
        }
        self._env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self._env.update(env or {})
        self._started: list[Process] = []

    def start(self, *command: str, name: str = "process", cwd: Path | None = None, **env: str) -> Process:
        """Starts a command, which may be a script of this interpreter's environment, such as `celery`."""
        unique = f"{len(self._started)}-{name}"
        process = Process(unique, command, self._folder, cwd or self._cwd, {**self._env, **env})
        self._started.append(process)
        return process

    def worker(self, app: str, gpu: int | str, *options: str, **more: str) -> Process:
        """Starts `celery -A app worker --gpu gpu`, and waits until it is ready."""
        command = ("celery", "-A", app, "worker", "--gpu", str(gpu), "-l", "info", *options)
        process = self.start(*command, name=f"gpu{gpu}", **more)
        process.wait_for_log(" ready.")
        return process

    def run(self, *command: str, seconds: float = END_SECONDS, **more: str) -> Process:
        """Runs a command to its end; any exit code but 0 fails the test."""
        process = self.start(*command, **more)
        assert process.wait(seconds) == 0, repr(process)
        return process

    def tell(self) -> str:
        """What is known of each process that still runs."""
        return "\n".join(one.tell() for one in self._started if one.exit_code is None)

    def close(self) -> None:
        """Ends all of them, the last started first."""
        for process in reversed(self._started):
            process.close()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
