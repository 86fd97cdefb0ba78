"""Celery tasks on leased GPUs: a task waits for a free GPU, and runs on the one that it leased."""

from __future__ import annotations

from celery_gpulease.exceptions import (
    ConfigurationError,
    GPUInUse,
    GPULeaseError,
    LeaseLost,
    LedgerUnavailable,
)
from celery_gpulease.extension import GPULease
from celery_gpulease.sending.router import GPURouter
from celery_gpulease.sending.task import GPUTask
from celery_gpulease.version import __version__

__all__ = [
    "ConfigurationError",
    "GPUInUse",
    "GPULease",
    "GPULeaseError",
    "GPURouter",
    "GPUTask",
    "LeaseLost",
    "LedgerUnavailable",
    "__version__",
]
