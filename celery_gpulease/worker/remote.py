"""`celery inspect gpulease`, `celery control gpulease_drain GPU` and `gpulease_undrain`: what a worker answers.

Imported by workers, and by the command that asks them; a producer needs none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker.control import control_command, inspect_command, nok, ok

from celery_gpulease.exceptions import GPULeaseError
from celery_gpulease.installed import installation
from celery_gpulease.lease import board
from celery_gpulease.ledger.census import gpu_called
from celery_gpulease.ledger.views import gpu_names
from celery_gpulease.version import __version__
from celery_gpulease.worker import gpu_worker as gpu_workers

if TYPE_CHECKING:
    from celery_gpulease.worker.gpu_worker import Execution, GPUWorker


def add_remote_commands() -> None:
    """Makes them known to Celery; twice does no harm."""
    inspect_command(name="gpulease")(inspect)
    control_command(name="gpulease_drain", args=[("gpu", str)], signature="GPU")(drain)
    control_command(name="gpulease_undrain", args=[("gpu", str)], signature="GPU")(undrain)


def inspect(_: Any) -> dict[str, Any]:
    """The GPU of each worker, and what it runs there, as the worker knows it; Redis is not asked."""
    one = gpu_workers.current
    return {"gpu": None, "version": __version__} if one is None else _told(one)


def drain(state: Any, gpu: str = "") -> dict[str, str]:
    """No new work for a GPU; its worker obeys."""
    return _drain(state.app, gpu, drained=True)


def undrain(state: Any, gpu: str = "") -> dict[str, str]:
    """Work for a GPU again; its worker obeys."""
    return _drain(state.app, gpu, drained=False)


def _drain(app: Any, gpu: str, *, drained: bool) -> dict[str, str]:
    if not gpu:
        return _answer(nok, "name the GPU, node7:0 say")
    one = gpu_workers.current
    try:
        ledger = installation(app).ledger
        if one is None or gpu not in (one.device.id, one.device.alias):
            if gpu_called(ledger, gpu) is None:
                names = gpu_names(ledger)
                are = "are" if len(names) > 1 else "is"
                return _answer(nok, f"no GPU {gpu!r} is registered; {', '.join(names) or 'none'} {are}")
            return _answer(ok, f"nothing to do: it serves {'no GPU' if one is None else one.device.id}")
        ledger.drain(gpu, drained=drained)
    except GPULeaseError as error:
        return _answer(nok, f"{type(error).__name__}: {error}")
    return _answer(ok, f"{one.device.id} {'is draining' if drained else 'takes work'}")


def _answer(word: Any, text: str) -> dict[str, str]:
    answer: dict[str, str] = word(text)
    return answer


def _told(one: GPUWorker) -> dict[str, Any]:
    settings = one.ledger.settings
    return {
        "gpu": one.device.id,
        "index": one.device.index,
        "pools": list(one.pools),
        "takes_work": not one.is_closed,
        "closed_because": one.closed_because,
        "running": [_running(execution) for execution in one.executions()],
        "lease_ttl": settings.lease_ttl,
        "heartbeat_interval": settings.heartbeat_interval,
        "version": __version__,
    }


def _running(execution: Execution) -> dict[str, Any]:
    claim, request = execution.claim, execution.request
    return {
        "task_id": getattr(request, "id", None),  # a message of which Celery could make no request has neither
        "task": getattr(request, "name", None),
        "fence": claim.fence,
        "delivery": claim.delivery,
        "is_over": execution.is_over,
        "has_lost_its_lease": board.is_lost(claim.fence),
    }
