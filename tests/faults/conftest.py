"""The world of a fault test: its own folder and project, on the shared server or on one of its own."""

import json
from contextlib import contextmanager

import pytest

from tests.faults.world import CONF, HOST, PROJECT, World
from tests.processes import Processes


@contextmanager
def world_on(url, folder, **conf):
    settings = {**CONF, **conf}
    env = {
        "TEST_URL": url,
        "TEST_JOURNAL": str(folder / "journal.jsonl"),
        "TEST_CONF": json.dumps(settings),
        "GPULEASE_HOST": HOST,
        "PYTHONPATH": str(PROJECT),
    }
    with Processes(folder, cwd=PROJECT, env=env) as processes:
        world = World(url, folder, processes, settings)
        try:
            yield world
        finally:
            world.close()


@pytest.fixture
def world(redis_url, tmp_path, monkeypatch):
    """A world on the shared server; when the test has passed, everything must be at rest."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(redis_url, tmp_path) as world:
        yield world
        world.rest()
