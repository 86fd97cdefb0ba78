"""What is held is taken back: by `revoke`, of Celery's control, and by `gpulease cancel`.

No worker has a held task in memory, so the ledger is told, and its end is written outside Redis at once: the state by
whoever revokes, the rest (signal, event, callbacks) by a worker, as in Celery; by the revoker too where none lives.
"""

from __future__ import annotations

import os
from socket import gethostname
from typing import TYPE_CHECKING, Any, Final

from celery import states
from celery.utils.functional import maybe_list
from celery.utils.log import get_logger
from kombu.utils.json import dumps

from celery_gpulease.dispatch.ending import write_ends_of
from celery_gpulease.ends import UNREADABLE, backend_of, registered
from celery_gpulease.installed import installation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.ledger.answers import Cancelled, Taken

logger = get_logger(__name__)

#: Celery's commands that revoke.
REVOKES: Final = frozenset({"revoke", "terminate", "revoke_by_stamped_headers"})
#: An argument of such a command: the ledger knows of this revoke.
TOLD: Final = "gpulease_told"


def take_back(app: Any, command: str, arguments: Mapping[str, Any], *, here: bool = False) -> Exception | None:
    """Does in the ledger what a revoke command says; what went wrong in the result backend.

    Raises:
        LedgerUnavailable: Redis does not answer.
        ConfigurationError: A setting is wrong.
    """
    ledger = installation(app).ledger
    if command == "revoke_by_stamped_headers":
        headers = arguments["headers"]
        if isinstance(headers, list):  # from `celery control`: name=value
            headers = dict(one.split("=", 1) for one in headers)
        return revoke_stamped(app, ledger, headers, here=here)
    task_ids = dict.fromkeys(maybe_list(arguments["task_id"]) or ())
    return cancel(app, ledger, task_ids, revoked=True, here=here)[1]


def cancel(
    app: Any, ledger: Ledger, task_ids: Iterable[str], *, revoked: bool = False, here: bool = False
) -> tuple[list[Cancelled], Exception | None]:
    """Takes back what is held of these tasks, and sees to their ends.

    Args:
        app: The app.
        ledger: Its ledger.
        task_ids: Of tasks of any kind.
        revoked: Remember them: what comes of them later, a retry say, ends too.
        here: The ends are written here: this is a worker.

    Returns:
        What was found of each; and why a state could not be stored (the result backend is away), None where all are. A
        GPU worker tries again.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    found = list(ledger.cancel_each(task_ids, revoked=revoked))
    due = [taken for one in found if not one.running_on for taken in one.taken]  # else a worker waits for the run
    return found, see_to(app, ledger, due, here=here)


def revoke_stamped(app: Any, ledger: Ledger, headers: Mapping[str, Any], *, here: bool = False) -> Exception | None:
    """Takes back what is held and bears one of these stamps, and remembers them; what went wrong as in `cancel`.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    stamps = stamp_names(headers, headers)
    for stamp in stamps:
        ledger.revoke_stamp(stamp)
    if here and not ledger.take_search(stamps, f"{gethostname()}:{os.getpid()}"):  # every worker has heard it
        return None
    return cancel(app, ledger, ledger.stamped(stamps), here=here)[1]


def stamp_names(stamps: Mapping[str, Any], headers: Iterable[str]) -> list[str]:
    """The names by which the ledger knows the stamps of these headers; each has one value, or a list of them."""
    names = []
    for header in headers:
        values = stamps.get(header)
        listed = values if isinstance(values, (list, tuple, set, frozenset)) else [values]
        names += [dumps([header, value]) for value in listed if value is not None]
    return names


def see_to(app: Any, ledger: Ledger, taken: list[Taken], *, here: bool = False) -> Exception | None:
    """Has the ends of these tickets written: here, or by a worker that is told; what went wrong first.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    if not taken:
        return None
    if not here:  # before a worker is told: it stores more than the state, which must stay
        trouble = next(filter(None, [_store_state(app, one) for one in taken]), None)
        if ledger.wake("due"):
            return trouble
    return write_ends_of(app, ledger, [one.ticket for one in taken])


def _store_state(app: Any, taken: Taken) -> Exception | None:
    """Only the state, as a worker of Celery 5.7 does when it hears of a revoke (celery/worker/control.py)."""
    try:
        backend = backend_of(app, registered(app, taken.task))
        if taken.has_run or backend.as_uri() in UNREADABLE:
            return None
        if backend.get_task_meta(taken.task_id, cache=False)["status"] != states.REVOKED:  # a worker may be first
            backend.mark_as_revoked(taken.task_id, "revoked")
    except Exception as error:  # noqa: BLE001  any backend, any error
        return error
    return None
