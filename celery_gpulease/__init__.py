"""Celery tasks on leased GPUs: a task waits for a free GPU, and runs on the one that it leased."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.version import __version__

if TYPE_CHECKING:
    from celery_gpulease.exceptions import (
        ConfigurationError,
        GPUInUse,
        GPULeaseError,
        LeaseLost,
        LedgerUnavailable,
        TurnCancelled,
        TurnTimeout,
    )
    from celery_gpulease.extension import GPULease
    from celery_gpulease.programs.reserving import reserve
    from celery_gpulease.sending.router import GPURouter
    from celery_gpulease.sending.task import GPUTask

__all__ = [
    "ConfigurationError",
    "GPUInUse",
    "GPULease",
    "GPULeaseError",
    "GPURouter",
    "GPUTask",
    "LeaseLost",
    "LedgerUnavailable",
    "TurnCancelled",
    "TurnTimeout",
    "__version__",
    "reserve",
]

#: What needs Celery comes when it is asked for: the process beside main (worker/companion.py) works without it, and
#: every run of pytest imports this package, where it is installed (testing/).
_HOMES: Final = {
    "ConfigurationError": "exceptions",
    "GPUInUse": "exceptions",
    "GPULeaseError": "exceptions",
    "LeaseLost": "exceptions",
    "LedgerUnavailable": "exceptions",
    "TurnCancelled": "exceptions",
    "TurnTimeout": "exceptions",
    "GPULease": "extension",
    "GPURouter": "sending.router",
    "GPUTask": "sending.task",
    "reserve": "programs.reserving",
}


def __getattr__(name: str) -> Any:
    """One of `_HOMES`."""
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
