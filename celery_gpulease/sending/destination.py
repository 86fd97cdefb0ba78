"""Is a message a GPU task's, and which GPUs may run it?"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from celery_gpulease.model import DEFAULT_POOL, HEADER, QUEUE_PREFIX, check_gpu, check_pool
from celery_gpulease.sending.maps import called_by
from celery_gpulease.sending.router import ROUTED_POOL
from celery_gpulease.sending.task import GPUTask

_warned: set[str] = set()


@dataclass(frozen=True)
class Destination:
    """Where a GPU task may run: a pool, or one GPU (`pin`)."""

    pool: str
    pin: str


def destination(app: Any, name: str, message: Any, options: dict[str, Any]) -> Destination | None:
    """Finds out where a message goes and takes our options out of it; None for what is no GPU task.

    A GPU task is known by its class, or by our header (a retry keeps it), never by the queue that it names; where the
    sender does not know its class, by a router or an option that names a pool or a GPU. A map of a GPU task is one.

    Args:
        app: The sender's.
        name: Of the task.
        message: As Celery's `create_task_message` has made it.
        options: Of sending.

    Raises:
        ConfigurationError: A pool's or a GPU's name is none.
    """
    routed = options.pop(ROUTED_POOL, None)
    header = (options.get("headers") or message.headers).get(HEADER) or message.headers.get(HEADER)
    road = _called_by(name, message.body) or name
    task = app.tasks.get(road)
    is_known = isinstance(task, GPUTask) or isinstance(app.tasks.get(name), GPUTask) or header is not None
    is_named = task is None and any(one is not None for one in (routed, options.get("pool"), options.get("gpu")))
    if not (is_known or is_named):
        return None
    header = header or {}
    asked_pool, asked_pin = options.pop("pool", None), options.pop("gpu", None)
    pool = asked_pool if asked_pool is not None else header.get("pool") or routed or getattr(task, "pool", DEFAULT_POOL)
    pin = asked_pin if asked_pin is not None else header.get("pin")
    _warn_of_queue(app, road, options.pop("queue", None))
    for ignored in ("exchange", "routing_key", "exchange_type"):
        options.pop(ignored, None)
    return Destination(check_pool(pool), "" if pin is None else check_gpu(pin))


def _called_by(name: str, body: Any) -> str | None:
    args, kwargs = body[:2] if isinstance(body, tuple) else (body["args"], body["kwargs"])  # protocol 2, protocol 1
    return called_by(name, args or (), kwargs or {})


def _warn_of_queue(app: Any, name: str, queue: Any) -> None:
    queue_name = getattr(queue, "name", queue)
    if queue_name in (None, app.conf.task_default_queue) or queue_name.startswith(QUEUE_PREFIX) or name in _warned:
        return
    _warned.add(name)
    warnings.warn(
        f"{name} is a GPU task: its queue {queue_name!r} is ignored. Name a pool instead, with pool=…",
        UserWarning,
        stacklevel=2,
    )
