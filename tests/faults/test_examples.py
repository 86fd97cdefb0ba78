"""The examples do what their READMEs say: the commands are taken from there."""

import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celery_gpulease.embedded import EmbeddedServer
from tests.processes import Processes

EXAMPLES = Path(__file__).parents[2] / "examples"


def commands_of(example: str) -> list[list[tuple[str, ...]]]:
    """The commands of its README, block by block."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (EXAMPLES / example / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return [[tuple(shlex.split(line)) for line in block.splitlines()] for block in blocks]


@contextmanager
def example(name: str, server: EmbeddedServer, tmp_path: Path) -> Iterator[tuple[Path, Processes]]:
    """A copy of an example, where beat may leave its schedule, and what starts its processes."""
    project = tmp_path / name
    shutil.copytree(EXAMPLES / name, project, ignore=shutil.ignore_patterns("__pycache__", "celerybeat-schedule*"))
    with Processes(tmp_path, cwd=project, env={"REDIS_URL": server.url, "GPULEASE_HOST": "node7"}) as processes:
        yield project, processes


def test_basic_runs_as_its_readme_says(own_server, tmp_path):
    (zero, one, beat), (send, status, pending) = commands_of("basic")
    with example("basic", own_server, tmp_path) as (_, processes):
        workers = [processes.start(*command, name="worker") for command in (zero, one)]
        scheduler = processes.start(*beat, name="beat")
        for worker in workers:
            worker.wait_for_log(" ready.")
        scheduler.wait_for_log("beat: Starting...")

        printed = processes.run(*send).output.splitlines()
        assert [line.split()[0] for line in printed[:4]] == ["a.blend", "b.blend", "c.blend", "d.blend"]
        used = {re.search(r"on GPU node7:(\d), which is CUDA device (\d) ", line).groups() for line in printed[:4]}
        assert used == {("0", "0"), ("1", "1")}
        assert re.fullmatch(r"3 films joined on GPU node7:[01]", printed[4])

        table = processes.run(*status).output
        assert re.search(r"^node7:0 .* gpu0@node7 ", table, re.MULTILINE)
        assert re.search(r"^node7:1 .* gpu1@node7 ", table, re.MULTILINE)
        assert len(processes.run(*pending).output.splitlines()) == 1, "only the table's head: nobody waits"
        assert scheduler.exit_code is None, repr(scheduler)


def test_by_name_runs_as_its_readme_says(own_server, tmp_path):
    (gpu, plain), (send,) = commands_of("by_name")
    with example("by_name", own_server, tmp_path) as (project, processes):
        workers = [processes.start(*one, name="worker", cwd=project / "worker") for one in (gpu, plain)]
        for worker in workers:
            worker.wait_for_log(" ready.")

        first, second, mail = processes.run(*send, cwd=project / "sender").output.splitlines()
        fences = []
        for line, path in ((first, "a.blend"), (second, "b.blend")):
            found = re.fullmatch(rf"{path} on GPU node7:0 under lease (\d+)", line)
            assert found, line
            fences.append(int(found[1]))
        assert fences[0] < fences[1]
        assert mail == "sent: the film is ready"
        assert "mail.notify" not in workers[0].log.partition(" ready.")[2], "the GPU's worker takes GPU tasks only"
