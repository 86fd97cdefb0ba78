"""Celery's control: a revoke takes back what the ledger holds too, and a purge says what it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from celery.app.control import Control
from celery.utils.log import get_logger

from celery_gpulease.dispatch.revoking import REVOKES, TOLD, take_back
from celery_gpulease.exceptions import GPULeaseError
from celery_gpulease.installed import installation
from celery_gpulease.ledger.views import held_by_pool

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = get_logger(__name__)


class LeasingControl(Control):
    """Celery's control, of which the ledger hears."""

    def broadcast(self, command: str, arguments: Any = None, *args: Any, **options: Any) -> Any:
        """Every command goes through here, those of `celery control` too."""
        if command in REVOKES:
            arguments = {**(arguments or {}), TOLD: _tell(self.app, command, {**(arguments or {}), **options})}
        return super().broadcast(command, arguments, *args, **options)

    def purge(self, connection: Any = None) -> Any:
        """Discards what waits in the broker's queues, as Celery does; what is held for GPUs stays, and is named."""
        number = super().purge(connection)
        if words := what_purge_leaves(self.app):
            logger.warning(words)
        return number

    discard_all = purge


def controlling(control_class: type) -> type:
    """The app's Control class, Celery's or the user's own, of which the ledger hears; as `holding.holding`."""
    if control_class is Control:
        return LeasingControl
    return type("LeasingControl", (LeasingControl, control_class), {})


def _tell(app: Any, command: str, arguments: Mapping[str, Any]) -> bool:
    """Whatever our Redis does, and whatever was asked for, Celery's own revoke goes out."""
    try:
        trouble = take_back(app, command, arguments)
    except Exception as error:
        words = "%s: what is held for GPUs is not taken back: %s"
        logger.error(words, command, error, exc_info=_unless_ours(error))  # noqa: TRY400
        return False
    if trouble:
        logger.warning("%s: REVOKED could not be stored here, a GPU worker will: %s", command, trouble)
    return True


def _unless_ours(error: Exception) -> Exception | None:
    """The words of our own errors say it all."""
    return None if isinstance(error, GPULeaseError) else error


def what_purge_leaves(app: Any) -> str | None:
    """What is held for GPUs, in words for who purges; None for nothing."""
    try:
        held = held_by_pool(installation(app).ledger)
    except Exception as error:  # noqa: BLE001  the queues are purged, whatever our Redis does
        return f"GPU tasks that are held, if there are any, are not purged; they cannot be counted: {error}"
    if not held:
        return None
    pools = ", ".join(f"{number} of pool {pool}" for pool, number in held.items())
    return f"GPU tasks that are held are not purged: {pools}. `celery gpulease cancel --all --pool POOL` cancels them"


def speak_when_purging(app: Any) -> None:
    """Lets `celery purge`, which asks the broker past `Control.purge`, say the same at its end."""
    context = click.get_current_context(silent=True)
    if context is not None and context.invoked_subcommand == "purge":
        context.call_on_close(lambda: _speak(app))


def _speak(app: Any) -> None:
    if words := what_purge_leaves(app):
        click.echo(words)
