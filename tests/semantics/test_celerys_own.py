"""Celery's own integration tests, of the version that is installed: with GPUTask as the app's task class, and four GPU
workers that serve them, they pass wherever they pass with plain Celery and four workers `-c 1`.

What passes with GPU tasks needs no run with plain ones. What fails in both fails for reasons of its own: their worker
is in the tests' process, and some tests look inside it.
"""

import json
import os
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import celery
import pytest

from celery_gpulease.embedded import EmbeddedServer
from tests.faults.world import HOST
from tests.processes import Processes

PROJECT = Path(__file__).parent / "project"
WORKERS = 4
#: Seconds: of one test, of all of them, of the download, until all workers serve.
TEST, ALL, DOWNLOAD, START = 200, 1500, 300, 120
#: They run workers of their own, in their own process, and measure memory: nothing of them takes our road.
ELSEWHERE = ("test_mem_leak_in_exception_handling", "test_backend_leak_in_fixture_teardown")
#: They wait long for what only a worker in their own process can show them.
INSIDE = "without_ignore_result or preserves_ignore_result"
ALL_BUT_ELSEWHERE = ("t/integration", *(f"--ignore=t/integration/{one}.py" for one in ELSEWHERE))
#: Of about 400: fewer, and this test has not tried them.
MOST = 250
#: Most tests wait, some for minutes for what must not come: so three parts run side by side, each on its own server.
SLOW = "allow_error_cb_on_chord_header"
CHAINS = "(test_chain or test_chord)"
LANES = {"slow": SLOW, "chains": f"{CHAINS} and not {SLOW}", "rest": f"not ({CHAINS} or {SLOW} or {INSIDE})"}


def unpacked_sdist(folder):
    """Celery's tests and their settings; its package stays out, so that the installed one is tested.

    Where the sdist cannot be had a laptop skips the test, and CI fails it.
    """
    wanted = f"celery=={celery.__version__}"
    command = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "celery", "-d", folder, wanted)
    got = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD, check=False)
    if got.returncode:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no sdist of {wanted}: {got.stderr}")
    with tarfile.open(next(folder.glob("celery-*.tar.gz"))) as archive:
        for member in archive:
            member.name = member.name.partition("/")[2]
            if member.name.startswith("t/") or member.name == "pyproject.toml":
                archive.extract(member, folder, filter="data")
    return folder


def arrange(tree):
    """Their fixtures of the app and its worker give way to ours, and a class of theirs to one that GPULease knows."""
    with (tree / "t/integration/conftest.py").open("a") as conftest:
        conftest.write("\nfrom celerys_own import (celery_app, celery_parameters, celery_session_app,\n")
        conftest.write("                         celery_session_worker)\n")
    tasks = tree / "t/integration/tasks.py"
    text = tasks.read_text().replace("(Task)", "(TaskOfThisRoad)")
    tasks.write_text(f"from celerys_own import TaskOfThisRoad\n{text}")


class Road:
    """Four workers on a server of their own, for the tests of one tree.

    Args:
        name: "plain" or "gpu".
        tree: Celery's tests.
        folder: For what they say.
        url: Of the server.

    Attributes:
        passed: The ids of the tests that passed, in all runs.
    """

    def __init__(self, name, tree, folder, url):
        place = urlsplit(url)
        self._env = {
            "OWN_ROAD": name,
            "OWN_TIMEOUT": str(TEST),
            "TEST_BROKER": url,
            "TEST_BACKEND": url,
            "REDIS_HOST": place.hostname,
            "REDIS_PORT": str(place.port),
            "GPULEASE_HOST": HOST,
            "PYTHONPATH": os.pathsep.join([str(PROJECT), str(tree)]),
        }
        folder.mkdir()
        self._folder, self._numbers, self.passed = folder, count(), set()
        self._processes = Processes(folder, cwd=tree, env=self._env)
        options = (("--gpu", str(n)) if name == "gpu" else ("-c", "1", "-n", f"w{n}@h") for n in range(WORKERS))
        self._workers = [
            self._processes.start("celery", "-A", "celerys_own", "worker", "-l", "info", *one) for one in options
        ]

    def close(self):
        self._processes.close()

    def failed(self, *asked):
        """Runs these of the tests, or all that an expression names; the ids of those that failed, in any part."""
        for worker in self._workers:
            worker.wait_for_log(" ready.", START)
        outcomes = self._folder / f"outcomes-{next(self._numbers)}"
        plugins = ("-p", "celery.contrib.pytest", "-p", "celerys_own", "-p", "no:cacheprovider", "-p", "no:celery")
        run = self._processes.start(
            *("python", "-m", "pytest", *plugins, "--continue-on-collection-errors", "-q", *asked),
            name="pytest",
            OWN_OUTCOMES=str(outcomes),
        )
        assert run.wait(ALL) in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), repr(run)
        told = [json.loads(line) for line in outcomes.read_text().splitlines()]
        failed = {test for test, outcome in told if outcome == "failed"}
        self.passed |= {test for test, outcome in told if outcome == "passed"} - failed
        return failed


@pytest.mark.long
def test_they_pass_with_gpu_tasks_wherever_they_pass_with_plain_ones(server_binary, tmp_path):
    tree = unpacked_sdist(tmp_path / "tree")
    arrange(tree)
    with ExitStack() as exit_stack:

        def road(name, folder):
            server = exit_stack.enter_context(EmbeddedServer(binary=server_binary))
            return exit_stack.enter_context(closing(Road(name, tree, tmp_path / folder, server.url)))

        ours = {name: road("gpu", name) for name in LANES}
        with ThreadPoolExecutor() as lanes:
            runs = [lanes.submit(ours[name].failed, *ALL_BUT_ELSEWHERE, "-k", which) for name, which in LANES.items()]
        failed = {one for run in runs for one in run.result()}
        assert sum(len(one.passed) for one in ours.values()) > MOST
        again = ours.pop("rest")
        for done in ours.values():
            done.close()
        plain = road("plain", "plain")
        suspects = failed - plain.failed(*sorted(failed)) if failed else failed
        broken = [one for one in sorted(suspects) if again.failed(one) and not plain.failed(one)]
        assert broken == [], "they fail with GPU tasks, and pass with plain ones, also each alone"
