"""The errors of celery_gpulease.

::

    GPULeaseError
    ├── ConfigurationError     a setting is wrong: names it, and the cure
    ├── GPUInUse               a second worker for one GPU
    ├── LeaseLost              the lease went to somebody else, or its worker died too often
    └── LedgerUnavailable      Redis does not answer (also kombu's OperationalError)
"""

from __future__ import annotations

from kombu.exceptions import OperationalError


class GPULeaseError(Exception):
    """Any error of celery_gpulease."""


class ConfigurationError(GPULeaseError):
    """A setting or an option is wrong; the message names it and says what to do."""


class GPUInUse(GPULeaseError):
    """Another worker serves this GPU; the message names it."""


class LeaseLost(GPULeaseError):
    """The lease of this run went to another holder, or the task's workers died too often."""


class LedgerUnavailable(GPULeaseError, OperationalError):
    """The Redis that holds the leases does not answer."""
