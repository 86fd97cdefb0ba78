"""What a GPU's worker says of its server and of how it was started: once, at its start, and when it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.ledger.notifications import eviction_trouble, switch_on
from celery_gpulease.reconcile.corrections import has_said
from celery_gpulease.worker.options import ineffective_options, ineffective_settings
from celery_gpulease.worker.pools import InMainPool

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger

logger = get_logger(__name__)


class Flags:
    """The server's notification flags: switched on, and warned of where they cannot be.

    Raises:
        ConfigurationError: When made, where the setting requires them and the server refuses.
        LedgerUnavailable: Redis does not answer.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._trouble = ledger, switch_on(ledger)

    def say(self) -> None:
        """Warns, where there is something to warn of."""
        if self._trouble:
            warn_of_server(self._trouble)

    def resync(self) -> None:
        """After each new connection: another server may be behind it, which then is warned of."""
        known, self._trouble = self._trouble, self._look_again()
        if known is None:
            self.say()

    def _look_again(self) -> str | None:
        try:
            return switch_on(self._ledger)
        except ConfigurationError as error:
            return str(error)


def say_of_eviction(ledger: Ledger) -> None:
    """Warns of a server that may throw leases and tasks away."""
    if trouble := eviction_trouble(ledger):
        warn_of_server(trouble)


def say_of_options(worker: Any) -> None:
    """Warns of what the command line or the settings ask for and this worker cannot do."""
    for flag in ineffective_options() + ineffective_settings(worker.app.conf):
        logger.warning("%s has no effect with --gpu: one task at a time, from the queue of this GPU", flag)
    if isinstance(worker.pool, InMainPool):
        logger.warning(
            "Pool %s cannot stop a task: revoke(terminate=True), time limits, a lost lease and a cold shutdown let "
            "it run to its end, and what kills its process kills this worker; prefork (the default) can",
            worker.pool_cls.__module__,
        )


def warn_of_server(trouble: str) -> None:
    """Says what the server does, which the reconciler then need not say too."""
    logger.warning(trouble)
    has_said(trouble)
