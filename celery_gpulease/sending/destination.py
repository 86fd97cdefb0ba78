"""Is a message a GPU task's, and which GPUs may run it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_gpulease.ends import registered
from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.model import DEFAULT_POOL, HEADER, check_gpu, check_pool
from celery_gpulease.sending.maps import road_of
from celery_gpulease.sending.router import ROUTED_POOL
from celery_gpulease.sending.task import GPUTask


@dataclass(frozen=True)
class Destination:
    """Where a GPU task may run: a pool, or one GPU (`pin`)."""

    pool: str
    pin: str


def destination(app: Any, name: str, message: Any, options: dict[str, Any]) -> Destination | None:
    """Finds out where a message goes and takes our options out of it; None for what is no GPU task.

    Args:
        app: The sender's.
        name: Of the task.
        message: As Celery's `create_task_message` has made it.
        options: Of sending.

    Raises:
        ConfigurationError: A pool's or a GPU's name is none, or the task that is given one is no GPU task.
    """
    road, headers = road_of(name, *_arguments(message.body)), message.headers
    is_gpu_task = goes_to_a_gpu(app, road, headers, options)
    routed, asked_pool, asked_pin = (options.pop(one, None) for one in (ROUTED_POOL, "pool", "gpu"))
    if not is_gpu_task:
        _refuse_options(road[0], pool=asked_pool, gpu=asked_pin)
        return None
    header, task = _header(headers, options) or {}, registered(app, road[0])
    pool = asked_pool if asked_pool is not None else header.get("pool") or routed or getattr(task, "pool", DEFAULT_POOL)
    pin = asked_pin if asked_pin is not None else header.get("pin")
    for ignored in ("queue", "exchange", "routing_key", "exchange_type"):
        options.pop(ignored, None)
    return Destination(check_pool(pool), "" if pin is None else check_gpu(pin))


def goes_to_a_gpu(app: Any, road: tuple[str, ...], headers: dict[str, Any], options: dict[str, Any]) -> bool:
    """Is it a GPU task, or a map of one?

    It is known by its class, or by our header (a retry keeps it), never by the queue that it names; where the sender
    does not know its class, by a router or an option that names a pool or a GPU.
    """
    tasks = [registered(app, name) for name in road]
    if any(isinstance(task, GPUTask) for task in tasks) or _header(headers, options) is not None:
        return True
    return tasks[0] is None and any(options.get(one) is not None for one in (ROUTED_POOL, "pool", "gpu"))


def _arguments(body: Any) -> tuple[Any, Any]:
    return body[:2] if isinstance(body, tuple) else (body["args"], body["kwargs"])  # protocol 2, protocol 1


def _header(headers: dict[str, Any], options: dict[str, Any]) -> dict[str, Any] | None:
    return (options.get("headers") or headers).get(HEADER) or headers.get(HEADER)


def _refuse_options(name: str, **asked: Any) -> None:
    for option, value in asked.items():
        if value is not None:
            message = (
                f"{option}={value!r}: this process knows {name} as a task without base=GPUTask, which would run "
                f"without a lease. Give it base=GPUTask, or leave {option} out (GPURouter passes such tasks by)"
            )
            raise ConfigurationError(message)
