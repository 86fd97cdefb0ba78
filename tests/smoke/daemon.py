"""What pytest-celery asks of a Docker daemon, done with plain processes: the smoke tests' second mode.

All images, networks, volumes and containers of pytest-celery come from one fixture, `docker_client`. This is what it
gives where no Docker is wanted; the tests, and all other fixtures, stay as they are. A volume is a folder, a container
a session of processes: `kill` ends all of it, `restart` starts the same command again.

What it cannot show: the image and what is installed in it, and anything that only a namespace of its own makes true
(another host's processes that cannot be seen, root). `exec_run` runs on this machine: a test may end by its pid what
it has started, and nothing by name.

Fragile, and why pytest-celery's lower bound is the version that it was tried with: this has just those members of
docker-py's objects that pytest_docker_tools 3.1 (`factories/`, `wrappers/container.py`) and pytest-celery 1.3 call.
One that is missing is an AttributeError here.
"""

import shlex
import shutil
import signal
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

from celery_gpulease.embedded import HOST, find_server
from tests.processes import Process, Processes
from tests.rabbitmq import RabbitMQ

END_SECONDS = 60.0


class Daemon:
    """Stands where docker-py's client does; what it started ends with the `with` block.

    Args:
        folder: For volumes, logs, and what servers keep.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._processes = folder, Processes(folder, cwd=folder)
        self._volumes: dict[str, Path] = {}
        self._count = 0
        self.images = SimpleNamespace(build=lambda **_: (Thing("an image"), ()))
        self.networks = SimpleNamespace(create=lambda name, **_: Thing(name))
        self.volumes = SimpleNamespace(create=self._create_volume)
        self.containers = SimpleNamespace(create=self._create_container, run=self._run)

    def _create_volume(self, name: str, **_: object) -> "Volume":
        self._volumes[name] = self._folder / name
        return Volume(name, self._folder / name)

    def _create_container(self, volumes: dict[str, object], **_: object) -> "Volume":
        """Only ever a container through which a volume is filled."""
        (name,) = volumes
        return Volume(name, self._volumes[name])

    def _run(self, image: str, command: list[str] | None = None, **options: dict) -> "Container":
        self._count += 1
        name = f"{image.partition(':')[0].replace(' ', '-')}-{self._count}"
        folder = self._folder / name
        folder.mkdir()
        if image.startswith("rabbitmq"):
            return Broker(name, folder)
        if image.startswith("redis"):
            (_, port) = next(iter(options["ports"].values()))
            place = ("--bind", HOST, "--port", str(port), "--dir", str(folder))
            return Program(name, self._processes, [find_server(), *command[1:], *place], folder, {}, port)
        (volume,) = options["volumes"]
        env = {**options["environment"], "PYTHONPATH": str(self._volumes[volume])}
        return Program(name, self._processes, command, self._volumes[volume], env)

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()


class Thing:
    """An image or a network: of these, only the name matters."""

    def __init__(self, name: str) -> None:
        self.id = self.name = name

    def remove(self, *_: object, **__: object) -> None:
        """There is nothing to remove."""


class Volume(Thing):
    """A folder."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self._folder = folder

    def put_archive(self, _: str, archive: BinaryIO) -> None:
        """Unpacks files into it."""
        with tarfile.open(fileobj=archive) as files:
            files.extractall(self._folder, filter="data")

    def remove(self, *_: object, force: bool = False) -> None:
        """Goes with all that is in it; `force` is said of the container that fills it, and then it stays."""
        if not force:
            shutil.rmtree(self._folder, ignore_errors=True)


class Container(Thing):
    """What all have; `address` is where it listens, None for one that does not."""

    status = "running"
    address: tuple[str, int] | None = None

    def __init__(self, name: str, port: int | None = None) -> None:
        super().__init__(name)
        where = name
        if port is not None:
            self.address, where = (HOST, port), f"{HOST}:{port}"
        self.attrs = {
            "Config": {"Hostname": where},  # of which pytest-celery makes the URL for the others
            "NetworkSettings": {"Networks": {}, "Ports": {}},
        }


class Program(Container):
    """A command, as often as it was started."""

    def __init__(
        self,
        name: str,
        processes: Processes,
        command: list[str],
        cwd: Path,
        env: dict[str, str],
        port: int | None = None,
    ) -> None:
        super().__init__(name, port)
        self._processes, self._command, self._cwd, self._env = processes, command, cwd, env
        self._runs: list[Process] = []
        self._start()

    def reload(self) -> None:
        """Looks at what has become of it."""
        self.status = "running" if self._runs[-1].exit_code is None else "exited"

    def logs(self) -> bytes:
        """All that it has said, also before it was started again."""
        return "".join(run.output + run.log for run in self._runs).encode()

    def kill(self, signal_name: str | None = None) -> None:
        """SIGKILL meets all of its processes, any other signal the first."""
        number = signal.Signals[signal_name or "SIGKILL"]
        if number is signal.SIGKILL:
            self._runs[-1].kill()
        else:
            self._runs[-1].send(number)

    def restart(self, timeout: float) -> None:
        """Ends it in order, if it runs, and starts it again."""
        self.reload()
        if self.status == "running":
            self.kill("SIGTERM")
            self._runs[-1].wait(timeout)
        self._runs[-1].close()
        self._start()

    def exec_run(self, command: str | list[str], *, demux: bool = False) -> tuple[int, object]:
        """Runs a command in its folder and environment: its exit code and what it said; `demux` keeps the two apart."""
        words = shlex.split(command) if isinstance(command, str) else command
        run = self._processes.start(*words, name="exec", cwd=self._cwd, **self._env)
        code = run.wait(END_SECONDS)
        out, err = run.output.encode(), run.log.encode()
        return code, (out, err) if demux else out + err

    def remove(self, *_: object, **__: object) -> None:
        """Leaves no process of it behind."""
        self._runs[-1].close()

    def _start(self) -> None:
        self._runs.append(self._processes.start(*self._command, name=self.name, cwd=self._cwd, **self._env))


class Broker(Container):
    """RabbitMQ, which has its own ways."""

    def __init__(self, name: str, folder: Path) -> None:
        self._server = RabbitMQ(folder)
        super().__init__(name, self._server.port)
        self._server.start()

    def reload(self) -> None:
        """It runs until it is removed."""

    def logs(self) -> bytes:
        """What is waited for: `start` has waited already."""
        return b"Server startup complete"

    def restart(self, **_: object) -> None:
        """A power cut, and the power is there again."""
        self._server.kill()
        self._server.start()

    def remove(self, *_: object, **__: object) -> None:
        """Leaves nothing of it running."""
        self._server.kill()
