"""What `GPULease(app)` leaves with an app, as `app.gpulease`, for every part to find."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.contradictions import refuse_contradictions
from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.ledger import Ledger, is_same_server
from celery_gpulease.servers import redis_urls, urls_of
from celery_gpulease.settings import Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable

#: Who speaks for the ledger. A monitor takes every sender but that of `task-sent` for a worker: it shall see one.
LEDGER_NODE: Final = "ledger@gpulease"


@dataclass
class Installation:
    """The settings and the ledger of one app, read when they are first needed.

    Attributes:
        app: The Celery app.
        reconcile: One reconciliation now; the seam calls it where no worker can.
        worker: The name of a GPU's worker, where this process is one.
        sends_task_events: Does a GPU's worker, here, send them now? None where this process is none.
    """

    app: Any
    reconcile: Callable[[], object]
    worker: str | None = None
    sends_task_events: Callable[[], bool | None] = lambda: None

    @cached_property
    def settings(self) -> Settings:
        """The settings, checked.

        Raises:
            ConfigurationError: One is wrong.
        """
        refuse_contradictions(self.app.conf)
        return read_settings(self.app.conf)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger."""
        conf = self.app.conf
        is_broker = all(map(self._is_ledgers, (conf.broker_write_url, conf.broker_read_url)))
        return Ledger(
            self.settings,
            conf.broker_transport_options.get("global_keyprefix", "") if is_broker else None,
            highest_first=not redis_urls(conf.broker_write_url),
        )

    def _is_ledgers(self, broker: object) -> bool:
        """Is this broker, without another to fail over to, the Redis where the leases live?"""
        found, settings = redis_urls(broker), self.settings
        if not len(found) == len(urls_of(broker)) == 1 or not is_same_server(found[0], settings.redis_url):
            return False
        master = self.app.conf.broker_transport_options.get("master_name")
        return not found[0].startswith("sentinel://") or master == settings.redis_options.get("master_name")

    @cached_property
    def event_dispatcher(self) -> Any:
        """Makes events in the ledger's name. It is not enabled: whoever publishes one has a producer."""
        return self.app.events.Dispatcher(hostname=LEDGER_NODE, enabled=False)


def install(app: Any, reconcile: Callable[[], object]) -> bool:
    """Remembers an app; False when it was installed before."""
    if hasattr(app, "gpulease"):
        return False
    app.gpulease = Installation(app, reconcile)
    return True


def installation(app: Any) -> Installation:
    """What was installed on an app.

    Raises:
        ConfigurationError: Nothing was.
    """
    try:
        installed: Installation = app.gpulease
    except AttributeError:
        message = f"celery_gpulease is not installed on {app!r}: call GPULease(app) where the app is made"
        raise ConfigurationError(message) from None
    return installed
