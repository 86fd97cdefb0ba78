"""`doctor` with real workers: content while they live, and no more when they are gone."""

import json

import pytest

from celery_gpulease.embedded import EmbeddedServer
from tests.faults.conftest import world_on
from tests.faults.world import HOST

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's result backend


@pytest.fixture
def sound_world(server_binary, tmp_path, monkeypatch):
    """A world on a server that keeps its data; its worker switches the events on."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    server = EmbeddedServer("--appendonly", "yes", binary=server_binary)
    with server, world_on(server.url, tmp_path, server) as world:
        yield world
        world.rest()


def wrong(process):
    """What it found, by the name of the check."""
    return {one["check"]: one["what"] for one in json.loads(process.output) if not one["is_note"]}


def test_it_finds_nothing_while_a_worker_lives_and_whom_nobody_serves_when_it_is_gone(sound_world):
    world = sound_world
    worker = world.worker(0)
    content = world.gpulease("doctor", "--json")
    assert (content.exit_code, wrong(content)) == (0, {})
    assert "1 GPU registered, 1 with a living worker" in content.output
    worker.kill()
    task = world.send("add", 1, 2)
    found = world.gpulease("doctor", "--json")
    why = wrong(found)
    assert (found.exit_code, list(why)) == (1, ["lines that nobody serves"])
    assert why["lines that nobody serves"].endswith(
        "pool default has 1 task waiting, and every GPU that serves it is offline"
    )
    world.worker(0)
    world.succeeds(task)
