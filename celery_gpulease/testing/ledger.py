"""An app whose ledger, broker and result backend are a test's own, and what its ledger tells."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import pytest
from celery import _state
from celery.app.utils import find_app

from celery_gpulease.contradictions import BESIDE_THE_URL
from celery_gpulease.installed import Installation, installation
from celery_gpulease.ledger.views import gpu_rows, pending_rows
from celery_gpulease.operate.cli.looking import status_of
from celery_gpulease.testing import APP_INI

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger import Ledger

DEFAULT_HOST: Final = "testhost"
#: With Celery these win over every setting (`Settings` in celery/app/utils.py).
VARIABLES: Final = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
#: Seconds that a worker waits for kombu's question to Redis when it stops; kombu's default is 1.
LONGEST_POLL: Final = 0.1
#: Of the project's own servers, and of what only their machines have: how they are reached, files, ports.
OF_ITS_SERVERS: Final[dict[str, Any]] = {
    **dict.fromkeys(BESIDE_THE_URL),
    "broker_use_ssl": None,
    "redis_backend_use_ssl": None,
    "redis_password": None,
    "redis_username": None,
    "result_backend_transport_options": {},
    "worker_state_db": None,
    "gpulease_metrics_port": None,
    "gpulease_redis_options": {},
}


def app_named(name: str) -> Any:
    """The app that the ini option names, as `celery -A` finds it.

    Raises:
        pytest.UsageError: It names none.
    """
    cure = (
        f"say which in pytest.ini ({APP_INI} = proj, as for `celery -A`), or define a fixture gpu_app that returns it"
    )
    if not name:
        message = f"gpu_app: the Celery app under test is not known; {cure}"
        raise pytest.UsageError(message)
    try:
        return find_app(name)
    except (ImportError, AttributeError) as error:
        message = f"{APP_INI} = {name}: no Celery app is found there ({type(error).__name__}: {error}); {cure}"
        raise pytest.UsageError(message) from error


class PrivateLedger:
    """The ledger of an app in a test.

    Attributes:
        app: The app.
        url: The server that is its ledger, its broker and its result backend.
    """

    def __init__(self, app: Any, url: str) -> None:
        self.app, self.url = app, url

    @property
    def ledger(self) -> Ledger:
        """What the app itself uses."""
        return installation(self.app).ledger

    def status(self) -> dict[str, Any]:
        """Every GPU and every pool, as `gpulease status --json` prints them."""
        return status_of(self.ledger)

    def pending(self) -> list[dict[str, Any]]:
        """Who waits, in order, as `gpulease pending --json` prints it; what is not due yet has no position."""
        return [asdict(row) for row in pending_rows(self.ledger, gpu_rows(self.ledger))]


@contextmanager
def private_ledger(app: Any, url: str, *, host: str = DEFAULT_HOST) -> Iterator[PrivateLedger]:
    """Lets an app use another server for everything, and afterwards its own again.

    Args:
        app: A Celery app on which `GPULease` was installed.
        url: A server for tests alone: its database is EMPTIED, now and at the end.
        host: The name of this host: its GPUs are `<host>:0` and so on.

    Raises:
        ConfigurationError: `GPULease` was not installed.
    """
    installed = installation(app)
    app.finalize()
    app.loader.import_default_modules()  # in this thread, and before its tasks are asked for their pools
    with pytest.MonkeyPatch.context() as patch, _settings_kept(app):
        for name in VARIABLES:
            patch.setenv(name, url)
        patch.delenv("GPULEASE_HOST", raising=False)
        patch.setattr(app, "backend_cls", None)  # a class or URL that would win over the setting
        app.conf.update(_settings(url, host))
        with _caches_of(app, installed), _current(app):
            installed.ledger.client.flushdb()
            yield PrivateLedger(app, url)
            installed.ledger.client.flushdb()


def _settings(url: str, host: str) -> dict[str, Any]:
    return {
        **OF_ITS_SERVERS,
        "broker_url": url,
        "broker_read_url": url,
        "broker_write_url": url,
        "broker_transport_options": {"polling_interval": LONGEST_POLL},
        "broker_connection_retry_on_startup": True,  # else Celery warns, and a test run may make errors of warnings
        "result_backend": url,
        "task_always_eager": False,
        "gpulease_redis_url": url,
        "gpulease_notifications": "auto",
        "gpulease_host": host,
    }


@contextmanager
def _settings_kept(app: Any) -> Iterator[None]:
    """A worker, and the test, may change settings: all are as before afterwards."""
    app.conf.get("broker_url")  # Celery reads its configuration with the first look at a value
    changes = app.conf.changes
    kept = dict(changes)
    try:
        yield
    finally:
        changes.clear()
        changes.update(kept)


@contextmanager
def _caches_of(app: Any, installed: Installation) -> Iterator[None]:
    """What the app has made of its settings is made anew, now and afterwards.

    Kombu keeps its pools of connections, one for each URL, until the process ends.
    """
    forget(app, installed)
    try:
        yield
    finally:
        close_backend(app)
        forget(app, installed)


def forget(app: Any, installed: Installation) -> None:
    """Lets an app read its settings again."""
    for name in ("amqp", "control"):
        app.__dict__.pop(name, None)
    app._pool = app._backend_cache = None  # noqa: SLF001  # as `Celery._after_fork` and `Celery.close` do
    app._local.__dict__.pop("backend", None)  # noqa: SLF001
    if ledger := vars(installed).pop("ledger", None):
        ledger.client.close()
    for name in ("settings", "event_dispatcher"):
        vars(installed).pop(name, None)


def close_backend(app: Any) -> None:
    """Closes this thread's connections to the result backend."""
    app.backend.result_consumer.stop()
    app.backend.result_consumer._pubsub = None  # noqa: SLF001  # a result unsubscribes when it is collected
    app.backend.client.connection_pool.disconnect()


@contextmanager
def _current(app: Any) -> Iterator[None]:
    """As for a worker's process, it is the app that `shared_task` and `current_app` mean."""
    default, current = _state.default_app, _state._tls.current_app  # noqa: SLF001
    app.set_default()
    app.set_current()
    try:
        yield
    finally:
        _state.set_default_app(default)
        _state._set_current_app(current)  # noqa: SLF001
