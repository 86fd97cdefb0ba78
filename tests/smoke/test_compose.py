"""docker-compose.yml as a user brings it up: healthy, measured, without root; the job of a killed or stopped one."""

import os
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest

from celery_gpulease.embedded import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
UP_SECONDS = 900.0  # the first time, images are fetched and one is built
SOON = 60.0
#: Tenths of a second.
ENDLESS = 36000
SERVICES = ("redis", "gpu0", "gpu1", "beat", "exporter")
METRICS_PORT = free_port()


def docker(*arguments, seconds=SOON):
    """What a docker command prints; any exit code but 0 fails the test, and shows what it said."""
    env = {**os.environ, "METRICS_PORT": str(METRICS_PORT)}
    done = subprocess.run(
        ["docker", *arguments], check=False, cwd=ROOT, timeout=seconds, text=True, capture_output=True, env=env
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
    return done.stdout


def compose(*arguments, seconds=SOON):
    """The same for `docker compose`, in a project of the tests' own."""
    return docker("compose", "--project-name", "gpulease-smoke", *arguments, seconds=seconds)


def python(code, seconds=SOON):
    """What Python prints in the example's project, beside beat."""
    return compose("exec", "-T", "beat", "python", "-c", code, seconds=seconds).strip()


START = """
import time
from proj import app
from tasks import render
from celery_gpulease import GPULease
from celery_gpulease.ledger.views import gpu_rows
ids = [render.delay("a.blend", frames).id for frames in {jobs}]
ledger = GPULease(app).ledger
while not (where := [row.id for row in gpu_rows(ledger) if row.task_id == ids[0]]):
    time.sleep(0.1)
print(where[0][-1], *ids)
"""


def start(*jobs):
    """Sends jobs of so many tenths of a second, and waits until the first runs: the index of its GPU, and their ids.

    In one call, which takes seconds: what follows must find them running.
    """
    index, *ids = python(START.format(jobs=jobs)).split()
    return int(index), *ids


def gpu_of_result(task, seconds=200):
    """Waits for a job's end, and tells on which GPU that was."""
    code = f"from proj import app; print(app.AsyncResult({task!r}).get(timeout={seconds - 20}))"
    return int(re.search(r" on GPU node7:(\d),", python(code, seconds)).group(1))


@pytest.fixture(scope="module")
def stack(real_docker):
    """All but the sender, up and healthy."""
    docker("compose", "version")
    try:
        compose("up", "--build", "--detach", "--wait", *SERVICES, seconds=UP_SECONDS)
        yield
    finally:
        compose("down", "--volumes", "--timeout", "1")


def test_its_sender_uses_both_gpus(stack):
    *films, joined = compose("run", "--rm", "-T", "sender").splitlines()
    assert {film.partition(" on GPU ")[2] for film in films} == {
        "node7:0, which is CUDA device 0 of its host",
        "node7:1, which is CUDA device 1 of its host",
    }
    assert joined.startswith("3 films joined on GPU node7:")


def test_no_process_in_it_is_roots(stack):
    for service in SERVICES:
        container = compose("ps", "--quiet", service).strip()
        header, *rows = docker("top", container, "-eo", "uid,pid,args").splitlines()
        assert header.split()[0] == "UID"
        assert rows
        assert [row for row in rows if row.split()[0] == "0"] == [], service


def test_metrics_tell_each_gpus_state_at_the_published_port(stack):
    def states():
        with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=SOON) as answer:
            text = answer.read().decode()
        samples = re.findall(r"^gpulease_gpu_state\{(.*)\} 1\.0$", text, re.MULTILINE)
        return {re.search('gpu="(.*?)"', one).group(1): re.search('state="(.*?)"', one).group(1) for one in samples}

    free = {"node7:0": "free", "node7:1": "free"}
    wait_until(lambda: states() == free, SOON, "two GPUs at rest")
    index, task = start(ENDLESS)
    wait_until(lambda: states() == {**free, f"node7:{index}": "leased"}, SOON, "one that works")
    python(f"from proj import app; app.AsyncResult({task!r}).revoke(terminate=True)")
    wait_until(lambda: states() == free, SOON, "two GPUs at rest again")


def test_the_job_of_a_killed_container_runs_on_the_other_gpu_and_the_container_serves_again(stack):
    index, task = start(200)
    compose("kill", "--signal", "KILL", f"gpu{index}")
    assert gpu_of_result(task) == 1 - index

    compose("up", "--detach", "--wait", f"gpu{index}", seconds=UP_SECONDS)
    pinned = f'from tasks import render; print(render.apply_async(("again.blend", 1), gpu="node7:{index}").id)'
    assert gpu_of_result(python(pinned)) == index


def test_a_stopped_container_ends_its_job_within_the_grace_period_or_hands_it_back(stack):
    index, mine, others, held = start(200, 400, 1)
    compose("stop", f"gpu{index}", seconds=2 * SOON)  # with the file's own grace period
    assert [gpu_of_result(task) for task in (mine, others, held)] == [index, 1 - index, 1 - index]

    compose("up", "--detach", "--wait", f"gpu{index}", seconds=UP_SECONDS)
    index, task = start(200)
    compose("stop", "--timeout", "1", f"gpu{index}")  # then it is killed
    assert gpu_of_result(task) == 1 - index
    compose("up", "--detach", "--wait", f"gpu{index}", seconds=UP_SECONDS)
