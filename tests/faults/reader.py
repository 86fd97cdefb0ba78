"""Somebody who follows README: saves its files, types its commands, and looks at what they say."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pages import Block
from tests.processes import Process, Processes

HOST = "node7"
PORT = "6379"
#: What stays in a terminal of its own, and by which words one sees that it is there.
SERVES = {
    r"^celery .* beat\b": "beat: Starting...",
    r"\bcelery .*\bworker\b": " ready.",
}
#: Told in words that differ from one run to the next: task ids, times, how long something took, versions.
VOLATILE = {
    r"[0-9a-f]{8}-[0-9a-f-]{27}": "<id>",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "<time>",
    r"\b\d+h\d\dm|\b\d+m\d\ds|\b\d+\.\ds": "<seconds>",
    r"[\d.]+ ms": "<ms>",
    r"(Redis|Valkey) [\d.]+": "<server>",
    r"[ -]*\n": "\n",
    r" +": " ",
}


class Reader:
    """A person with a server of their own, at the port that README names.

    Args:
        processes: Starts what they type.
        port: Where the server really is.
        folder: Where they are.
    """

    def __init__(self, processes: Processes, port: int, folder: Path) -> None:
        self._processes, self.port, self.folder = processes, port, folder

    def save(self, name: str, *texts: str) -> None:
        """Saves a file."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(texts).replace(f"localhost:{PORT}", f"127.0.0.1:{self.port}"))

    def type(self, line: str, where: str = ".") -> Process:
        """Types a command: what serves is ready then, everything else has ended, exit code 0."""
        words = next((words for pattern, words in SERVES.items() if re.search(pattern, line)), None)
        process = self.start(line, where)
        if words:
            process.wait_for_log(words)
        else:
            assert process.wait() == 0, repr(process)
        return process

    def start(self, line: str, where: str = ".") -> Process:
        """Types a command, and does not wait."""
        line = re.sub(r"redis-cli(?! -u)", f"redis-cli -p {self.port}", line)
        line = line.replace(f"--port {PORT}", f"--port {self.port}")
        name = re.sub(r"\W+", "-", line)[:40].strip("-")
        return self._processes.start("bash", "-c", line, name=name, cwd=self.folder / where)

    def follow(self, block: Block, where: str = ".") -> list[Process]:
        """Types all commands of a block."""
        return [self.type(line, where) for line in block.lines]


def in_general(text: str) -> str:
    """What a command says, without what differs from one run to the next."""
    for pattern, word in VOLATILE.items():
        text = re.sub(pattern, word, text)
    return text.strip()


@contextmanager
def reader(folder: Path, port: int) -> Iterator[Reader]:
    """A reader in this folder; all that they have started ends with the block."""
    if shutil.which("redis-cli") is None:
        missing = "no redis-cli is installed: apt-get install redis-tools"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    logs = folder / "logs"
    logs.mkdir()
    url = f"redis://127.0.0.1:{port}/0"
    env = {"GPULEASE_HOST": HOST, "REDIS_URL": url, "PYTHONDONTWRITEBYTECODE": "1"}
    with Processes(logs, cwd=folder, env=env) as processes:
        yield Reader(processes, port, folder)


def here(name: str) -> bool:
    """Does this interpreter's environment have this script?"""
    return (Path(sys.executable).parent / name).exists()
