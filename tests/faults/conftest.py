"""The world of a fault test: its own folder and project, on the shared server or on one of its own."""

import json
from contextlib import contextmanager

import pytest

from tests.faults.world import CONF, HOST, PROJECT, World
from tests.processes import Processes
from tests.proxy import Proxy


@contextmanager
def world_on(url, folder, server=None, proxy=None, **conf):
    settings = {**CONF, **conf}
    env = {
        "TEST_URL": url,
        "TEST_JOURNAL": str(folder / "journal.jsonl"),
        "TEST_CONF": json.dumps(settings),
        "GPULEASE_HOST": HOST,
        "PYTHONPATH": str(PROJECT),
    }
    with Processes(folder, cwd=PROJECT, env=env) as processes:
        world = World(url, folder, processes, settings, server, proxy)
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


@pytest.fixture
def proxied(own_server, tmp_path, monkeypatch):
    """A world on its own server, which workers and sender reach through a proxy; at rest when the test has passed."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with Proxy(own_server.port) as proxy, world_on(proxy.url, tmp_path, own_server, proxy) as world:
        yield world
        world.rest()


@pytest.fixture
def patient(redis_url, tmp_path, monkeypatch):
    """A world in which nothing lapses while a test lasts, nor is renewed."""
    yield from world_with_heartbeat(200, redis_url, tmp_path, monkeypatch)


@pytest.fixture
def steady(redis_url, tmp_path, monkeypatch):
    """A world in which nothing lapses while a test lasts, and all that lives is renewed every second."""
    yield from world_with_heartbeat(1, redis_url, tmp_path, monkeypatch)


def world_with_heartbeat(seconds, url, folder, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(url, folder, gpulease_lease_ttl=600, gpulease_heartbeat_interval=seconds) as world:
        yield world
        world.rest()
