"""`gpulease doctor`: asks Redis and the configuration what could go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.exceptions import ConfigurationError, LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.ledger.layout import OtherLayout
from celery_gpulease.operate.doctor import conf, pool, server
from celery_gpulease.operate.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from celery_gpulease.ledger import Ledger

    Check: TypeAlias = Callable[[Any, Ledger], Iterator[Finding]]

#: What needs no server.
OF_SETTINGS: Final = {
    "modules": conf.modules,
    "settings": conf.warned_of,
    "eager tasks": conf.eager,
    "queues of GPU tasks": conf.named_queues,
    "time limits": conf.time_limits,
    "visibility timeout": conf.visibility_timeout,
    "results": conf.results,
    "remote control": conf.remote_control,
}
#: What asks the ledger's Redis.
OF_REDIS: Final[dict[str, Check]] = {
    "broker": server.broker,
    "round trip": server.round_trip,
    "rights": server.rights,
    "server version": server.version,
    "persistence": server.persistence,
    "eviction policy": server.eviction,
    "notifications": server.notifications,
    "clock": server.clock,
    "types of keys": pool.types,
    "journal": pool.future,
    "layout": pool.layout,
    "workers": pool.living,
    "versions": pool.versions,
    "reconciler": pool.reconciler,
    "lines that nobody serves": pool.unserved,
    "queues without a GPU": pool.orphaned_queues,
    "leases without a TTL": pool.endless,
}


def examine(app: Any) -> Iterator[tuple[str, Finding]]:
    """What each check found, by the check's name, as soon as it did.

    Args:
        app: The Celery app.
    """
    for name, of_settings in OF_SETTINGS.items():
        yield from _named(name, of_settings(app))
    try:
        ledger = installation(app).ledger
    except ConfigurationError:  # "settings" has said it
        return
    try:
        for name, check in OF_REDIS.items():
            yield from _named(name, check(app, ledger))
    except OtherLayout as error:
        yield "layout", Finding(f"{error}. What the ledger holds was not checked")
    except LedgerUnavailable as error:
        yield "Redis", Finding(str(error), "start it, or correct gpulease_redis_url; what asks it was not checked")


def _named(name: str, check: Iterator[Finding]) -> Iterator[tuple[str, Finding]]:
    """A check that fails is a finding, and keeps none of the others."""
    try:
        for found in check:
            yield name, found
    except (LedgerUnavailable, OtherLayout):
        raise
    except Exception as error:  # noqa: BLE001  whatever it met, it is told
        yield name, Finding(f"this could not be checked: {type(error).__name__}: {error}")
