"""A RabbitMQ server of one's own: node, ports, cookie and folder are its alone, and it ends with the tests."""

import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path

from celery_gpulease.embedded import HOST, free_port
from tests.processes import Process
from tests.waiting import wait_until

#: Erlang takes its time, on two cores that others use too.
START_SECONDS = 90.0
#: Debian's script in the path insists on the user `rabbitmq`; this is what it runs.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = SERVER.with_name("rabbitmqctl")

# Erlang's name server in the same session, so that none stays behind as a daemon.
START = 'epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 & exec "$0"'

CONFIG = """
listeners.tcp.1 = {host}:{port}
log.console.level = warning
vm_memory_high_watermark.absolute = 300MB
disk_free_limit.absolute = 1MB
"""


def is_installed() -> bool:
    """Is Debian's package there?"""
    return SERVER.exists() and shutil.which("epmd") is not None


class RabbitMQ:
    """A server that lives as long as the `with` block."""

    def __init__(self, folder: Path) -> None:
        self.port, self._folder = free_port(), folder
        self._process: Process | None = None
        self._starts = 0
        (folder / "rabbitmq.conf").write_text(CONFIG.format(host=HOST, port=self.port))
        (folder / "plugins").write_text("[].")
        cookie = folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        self._env = {
            "HOME": str(folder),
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
        }

    @property
    def url(self) -> str:
        """Its only virtual host, as the user that may come from this machine alone."""
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    def start(self) -> None:
        """Starts the server, with what it kept on disk, and waits until it takes connections."""
        self._starts += 1
        command = ("/bin/sh", "-c", START, str(SERVER))
        process = Process(f"rabbitmq{self._starts}", command, self._folder, self._folder, self._env)
        self._process = process
        wait_until(lambda: self._answers() or process.exit_code is not None, START_SECONDS, repr(process))
        assert process.exit_code is None, repr(process)

    def control(self, *arguments: str) -> str:
        """What `rabbitmqctl …` prints, once it has ended."""
        command = [CONTROL, "-n", self._env["RABBITMQ_NODENAME"], *arguments]
        return subprocess.run(command, env=self._env, check=True, capture_output=True, text=True).stdout

    def kill(self) -> None:
        """Ends it as a power cut does."""
        if self._process is not None:
            self._process.close()
        self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), 1) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(1) == b"\x01"
        except OSError:
            return False

    def __enter__(self) -> "RabbitMQ":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
