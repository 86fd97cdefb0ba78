"""On what the table was measured."""

import os
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from celery_gpulease.embedded import EmbeddedServer, find_server

PACKAGES = ("celery", "kombu", "redis", "rq", "dramatiq")


def usual_server(*options):
    """The server that most people run; where it is not installed, the demo's."""
    return EmbeddedServer(*options, binary=_usual_binary())


def _usual_binary():
    return shutil.which("redis-server")


def header(quick):
    """The date, the machine, the versions and the command, as a list of Markdown."""
    load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    server = subprocess.run(
        [_usual_binary() or find_server(), "--version"], check=True, capture_output=True, text=True
    ).stdout
    command = " ".join(["QUICK=1"] * quick + ["python", "-m", "tests.benchmarks", *sys.argv[1:]])
    return "\n".join(
        [
            f"- {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, `{command}`",
            f"- {os.cpu_count()} cores, {_processor()}; load average at the start {load}",
            f"- Python {sys.version.split()[0]}, {packages}; {' '.join(server.split()[:3])}",
            "",
        ]
    )


def _processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")
