"""The Redis of a test run: an embedded one, or one that was named for tests alone."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from celery_gpulease.embedded import EmbeddedServer, ServerNotFoundError
from celery_gpulease.exceptions import GPULeaseError
from celery_gpulease.ledger.connection import connect, in_our_words
from celery_gpulease.testing import URL_INI, URL_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Set by pytest-xdist in each of its processes: gw0, gw1, …
XDIST_WORKER: Final = "PYTEST_XDIST_WORKER"
#: Those that Celery's broker, its result backend and the ledger all know.
SCHEMES: Final = ("redis", "rediss")


def server_named_by(ini: str) -> str | None:
    """The server that the environment or the ini option names."""
    return os.environ.get(URL_VARIABLE) or ini or None


@contextmanager
def private_server(url: str | None = None) -> Iterator[str]:
    """A Redis for tests alone.

    Args:
        url: One that runs, whose database is empty; by default an embedded one is started, which ends with the block.

    Yields:
        Its URL.
    """
    if url is None:
        with _embedded() as server:
            yield server.url
    else:
        url = _of_this_process(url)
        _refuse_if_used(url)
        yield url


def _embedded() -> EmbeddedServer:
    try:
        return EmbeddedServer()
    except ServerNotFoundError as missing:
        message = f"{missing} Or name a Redis for tests alone: the variable {URL_VARIABLE}, or {URL_INI} in pytest.ini"
        if os.environ.get("CI"):
            pytest.fail(message, pytrace=False)
        pytest.skip(message)


def _of_this_process(url: str) -> str:
    """Each process of pytest-xdist has a database of its own: they must not empty each other's."""
    where = urlsplit(url)
    if where.scheme not in SCHEMES:
        schemes = " or ".join(SCHEMES)
        pytest.fail(f"{URL_VARIABLE} (or {URL_INI}): name a server by {schemes}, not {where.scheme}://", pytrace=False)
    number = int((os.environ.get(XDIST_WORKER) or "gw0").removeprefix("gw"))
    return where._replace(path=f"/{int(where.path.strip('/') or 0) + number}").geturl()


def _refuse_if_used(url: str) -> None:
    """The tests would wipe out somebody's data."""
    trouble = ""
    try:
        with connect(url, {}) as client, in_our_words("dbsize"):
            if keys := client.dbsize():
                trouble = f"holds {keys} keys: name a database for tests alone, or empty this one by FLUSHDB"
    except (GPULeaseError, ValueError) as error:
        trouble = f"cannot be used: {error}"
    if trouble:
        where = urlsplit(url)
        name = f"{where.hostname or ''}:{where.port or ''}{where.path}"  # without its password
        pytest.fail(f"{URL_VARIABLE} (or {URL_INI}) names {name}, which {trouble}", pytrace=False)
