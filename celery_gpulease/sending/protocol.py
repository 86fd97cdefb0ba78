"""Celery's older message protocol: a GPU task is held in the newer one, whose headers tell what the body asks for."""

from __future__ import annotations

from typing import Any, Final

#: What both protocols name alike, but for what is told apart below.
_NAMED_ALIKE: Final = ("eta", "expires", "callbacks", "errbacks", "chord", "root_id", "parent_id", "shadow", "origin")


def in_protocol_2(amqp: Any, told: dict[str, Any]) -> Any:
    """Celery's finished message in protocol 2.

    Args:
        amqp: Of the app.
        told: The body of a message of protocol 1.
    """
    time_limit, soft_time_limit = told.get("timelimit") or (None, None)
    return amqp.as_task_v2(
        told["id"],
        told["task"],
        told.get("args") or (),
        told.get("kwargs") or {},
        group_id=told.get("group") or told.get("taskset"),
        group_index=told.get("group_index"),
        retries=told.get("retries") or 0,
        time_limit=time_limit,
        soft_time_limit=soft_time_limit,
        argsrepr=told.get("argsrepr"),
        kwargsrepr=told.get("kwargsrepr"),
        **{name: told.get(name) for name in _NAMED_ALIKE},
    )
