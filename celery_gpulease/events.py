"""Events of what the ledger does, for Flower and `celery events`: beside Celery's own of what workers do.

Celery's monitors know a task's state by its events, and take one that they do not know, such as `task-held`, for a
later state than STARTED and REVOKED (`Task.event` in celery/events/state.py). They take over all of an event's fields,
too: so those of Celery's events that may follow ours carry their state as a field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery import states
from celery.events import Event
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from celery_gpulease.installed import LEDGER_NODE, installation
from celery_gpulease.throttled import ThrottledWarning

if TYPE_CHECKING:
    from celery.events import EventDispatcher

logger = get_logger(__name__)

#: Of Celery's events those that a worker sends for a task that it did not run.
CELERYS: Final = ("task-revoked", "task-failed")
_STATES: Final = {
    "task-started": states.STARTED,
    "task-revoked": states.REVOKED,
    "task-rejected": states.REJECTED,
}
_unsent: Final = ThrottledWarning(logger, "Events that could not be sent: %d, the last %s of %s: %s")


def with_state(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of an event of Celery's that may follow one of ours."""
    return {**fields, "state": _STATES[kind]} if kind in _STATES else fields


def are_sent(app: Any) -> bool:
    """Does this process send events of tasks, by its configuration or as its worker was told?"""
    told = installation(app).sends_task_events()
    return bool(app.conf.worker_send_task_events if told is None else told)


def send(app: Any, kind: str, **fields: Any) -> None:
    """Sends an event, where events are sent: one of Celery's in the name of this GPU's worker, else in the ledger's.

    It waits for the broker, so no event loop may call it. What cannot be sent is logged: an event is a hint.
    """
    if not are_sent(app):
        return
    node = installation(app).worker if kind in CELERYS else None
    try:
        with app.events.default_dispatcher(hostname=node or LEDGER_NODE) as dispatcher:
            dispatcher.send(kind, **with_state(kind, fields))
    except Exception as error:  # noqa: BLE001  # of any broker
        _unsent.add(kind, fields.get("uuid"), error)


def send_through(eventer: EventDispatcher, kind: str, **fields: Any) -> None:
    """Sends an event in the ledger's name by the dispatcher of a worker, in one line with its own events."""
    eventer.send(kind, Event=_of_ledger, **fields)


def _of_ledger(kind: str, **fields: Any) -> dict[str, Any]:
    event: dict[str, Any] = Event(kind, **{**fields, "hostname": LEDGER_NODE})
    return event


def publish_held(app: Any, producer: Any, sent: dict[str, Any], pool: str, pin: str) -> None:
    """Sends `task-held`, before HOLD: a monitor that heard of it after the start would show a running task as held.

    Celery's `task-sent` comes after the send; it changes nothing that a monitor knows already.

    Args:
        app: The sender's.
        producer: Kombu's.
        sent: What `task-sent` said.
        pool: Where it waits.
        pin: The GPU that it waits for, or empty.
    """
    dispatcher: EventDispatcher = installation(app).event_dispatcher
    known = {name: sent.get(name) for name in ("uuid", "name", "root_id", "parent_id")}
    try:
        dispatcher.publish("task-held", {**known, "pool": pool, "gpu": pin or None}, producer)
    except (OperationalError, *producer.connection.recoverable_connection_errors) as error:
        _unsent.add("task-held", known["uuid"], error)
