"""The errors of celery_gpulease.

::

    GPULeaseError
    ├── ConfigurationError     a setting is wrong: names it, and the cure
    ├── GPUInUse               a second worker for one GPU
    ├── LeaseLost              the lease went to somebody else, or its worker died too often
    ├── LedgerUnavailable      Redis does not answer (also kombu's OperationalError)
    ├── TurnCancelled          `gpulease cancel` took back what waited for a GPU (`reserve`, `gpulease run`)
    └── TurnTimeout            its turn did not come in time (also TimeoutError)
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


class TurnCancelled(GPULeaseError):
    """What waited for a GPU, by `reserve` or `gpulease run`, was taken back by order."""


class TurnTimeout(GPULeaseError, TimeoutError):
    """What waited for a GPU, by `reserve` or `gpulease run`, did not get one in time."""
