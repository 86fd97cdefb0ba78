"""docker-compose.yml as a user brings it up: its tasks run on both GPUs, and a killed container's job comes back."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parents[2]
UP_SECONDS = 900.0  # the first time, images are fetched and one is built
SOON = 60.0


def docker(*arguments: str, seconds: float = SOON) -> str:
    """What a docker command prints; any exit code but 0 fails the test, and shows what it said."""
    done = subprocess.run(
        ["docker", *arguments], check=False, cwd=ROOT, timeout=seconds, text=True, capture_output=True
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
    return done.stdout


def compose(*arguments: str, seconds: float = SOON) -> str:
    """The same for `docker compose`, in a project of the tests' own."""
    return docker("compose", "--project-name", "gpulease-smoke", *arguments, seconds=seconds)


def python(code: str, seconds: float = SOON) -> str:
    """What Python prints in the example's project, beside beat."""
    return compose("exec", "-T", "beat", "python", "-c", code, seconds=seconds).strip()


@pytest.fixture(scope="module")
def stack() -> Iterator[None]:
    """All but the sender, up and healthy."""
    try:
        docker("version", seconds=10)
        docker("compose", "version")
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"needs Docker with Compose, and a running daemon: {error}")
    try:
        compose("up", "--build", "--detach", "--wait", "redis", "gpu0", "gpu1", "beat", seconds=UP_SECONDS)
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


def test_the_job_of_a_killed_container_runs_on_the_other_gpu_and_the_container_serves_again(stack):
    task = python('from tasks import render; print(render.delay("long.blend", 200).id)')

    def where() -> str | None:
        rows = json.loads(compose("exec", "-T", "beat", "celery", "-A", "proj", "gpulease", "status", "--json"))["gpus"]
        return next((row["id"].rpartition(":")[2] for row in rows if row["task_id"] == task), None)

    index = wait_until(where, SOON, "the job to run")
    compose("kill", "--signal", "KILL", f"gpu{index}")
    result = python(f'from proj import app; print(app.AsyncResult("{task}").get(timeout=120))', seconds=150)
    other = 1 - int(index)
    assert result == f"long.blend on GPU node7:{other}, which is CUDA device {other} of its host"

    compose("up", "--detach", "--wait", f"gpu{index}", seconds=120)
    pinned = (
        f'from tasks import render; print(render.apply_async(("again.blend", 1), gpu="node7:{index}").get(timeout=60))'
    )
    assert python(pinned, seconds=90).startswith(f"again.blend on GPU node7:{index}")
