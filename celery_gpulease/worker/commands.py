"""Celery's revoke commands on a worker: the ledger hears of those that were sent past our control (Flower's, say)."""

from __future__ import annotations

from collections import deque
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Final

from celery.utils.log import get_logger
from celery.worker.control import Panel, control_command

from celery_gpulease.dispatch.revoking import REVOKES, TOLD, take_back
from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.forks import let_forks_pass
from celery_gpulease.loops import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

logger = get_logger(__name__)

#: What Celery's commands say of themselves.
SHOWN: Final = ("alias", "visible", "default_timeout", "help", "signature", "args", "variadic")


class Revoker(Loop):
    """Tells the ledger what was revoked, beside the event loop; for as long as Redis is away it tries again."""

    uses_celery = True

    def __init__(self, app: Any) -> None:
        super().__init__("revoker")
        self._app = app
        self._orders: deque[tuple[str, dict[str, Any]]] = deque()

    def obey(self, command: str, arguments: dict[str, Any]) -> None:
        """A command that this worker has heard."""
        self._orders.append((command, arguments))
        self.wake()

    def turn(self) -> None:
        """Obeys all, in their order."""
        while self._orders:
            let_forks_pass()
            command, arguments = self._orders[0]
            try:
                take_back(self._app, command, arguments, here=True)
            except LedgerUnavailable:
                raise  # later, in the same order
            except Exception:  # whatever somebody sent, or a wrong setting: it would fail again
                logger.exception("%s: what is held for GPUs is not taken back: %r", command, arguments)
            self._orders.popleft()


@cache
def revoker(app: Any) -> Revoker:
    """The one of this app's worker, started when it is first needed."""
    one = Revoker(app)
    one.start()
    return one


def add_commands() -> None:
    """Puts ours in place of Celery's revoke commands, which they call; once is enough."""
    for name in REVOKES:
        theirs, meta = Panel.data[name], Panel.meta[name]
        if not hasattr(theirs, "is_leasing"):
            options = {one: getattr(meta, one) for one in SHOWN}
            control_command(name=name, **options)(_also_in_ledger(name, theirs))


def _also_in_ledger(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def command(state: Any, **arguments: Any) -> Any:
        is_told = arguments.pop(TOLD, False)
        if not is_told and hasattr(state.app, "gpulease"):
            revoker(state.app).obey(name, arguments)
        return theirs(state, **arguments)

    command.is_leasing = True  # type: ignore[attr-defined]
    return command
