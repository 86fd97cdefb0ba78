"""What a GPU's worker cannot do, said before anything is registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.exceptions import ConfigurationError, GPUInUse
from celery_gpulease.ledger.listening import other_prefixes
from celery_gpulease.prometheus import library
from celery_gpulease.worker.metrics import port_of

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger
    from celery_gpulease.model import Device
    from celery_gpulease.settings import Settings

LAST_PORT: Final = 65535


def refuse_options(worker: Any, gpu: str | None, options: dict[str, Any]) -> None:
    """Refuses what a GPU's worker cannot do.

    Raises:
        ConfigurationError: The pool is a green one, forks are not used, or it would scale.
    """
    if gpu is None:
        message = "--gpu-pools says what a GPU serves: name the GPU too, such as --gpu 0"
        raise ConfigurationError(message)
    pool = worker.pool_cls.__module__
    for green in ("gevent", "eventlet"):
        if green in pool:
            message = (
                f"-P {green} cannot serve a GPU: its greenlets share one process, in which a computing task stops the "
                "heartbeat and no task can be stopped; leave -P out, prefork is the default"
            )
            raise ConfigurationError(message)
    if options.get("autoscale"):
        message = "--autoscale has no meaning with --gpu: a GPU does one task at a time; leave it out"
        raise ConfigurationError(message)
    if getattr(worker, "pool_start_method", "fork") == "spawn":
        message = "--pool-start-method spawn cannot serve a GPU: main and child share memory; use fork, the default"
        raise ConfigurationError(message)


def refuse_other_prefix(ledger: Ledger, device: Device) -> None:
    """Refuses a GPU whose queue a worker with another key prefix consumes.

    Raises:
        GPUInUse: There is one.
    """
    if others := other_prefixes(ledger, device.id):
        message = (
            f"GPU {device.id} is served under gpulease_key_prefix = {others[0]!r}, here it is {ledger.keys.prefix!r}: "
            "leases would not exclude each other, and both workers consume one queue. Give all apps that share GPUs "
            "one gpulease_key_prefix; where this is another GPU with the same name, set GPULEASE_HOST"
        )
        raise GPUInUse(message)


def refuse_metrics(settings: Settings, device: Device) -> None:
    """Refuses a port for metrics that cannot be one, or for which the library is missing.

    Raises:
        ConfigurationError: So it is.
    """
    if settings.metrics_port is None:
        return
    if (port := port_of(settings.metrics_port, device)) > LAST_PORT:
        message = (
            f"gpulease_metrics_port = {settings.metrics_port}: the GPU's index is added, and {port} is no port; "
            f"it must be at most {LAST_PORT - device.index} here"
        )
        raise ConfigurationError(message)
    try:
        library()
    except ConfigurationError as error:
        message = f"gpulease_metrics_port is set: {error}"
        raise ConfigurationError(message) from error
