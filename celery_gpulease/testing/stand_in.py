"""A stand-in for the GPU and the lease of a task that runs without one: eagerly, applied, or called as a function."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from celery_gpulease import lease as leases
from celery_gpulease.exceptions import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class StandInGPU:
    """What `self.gpu` is. Both fields may be set."""

    id: str | None = "testhost:0"
    index: int | None = 0


class StandInLease(leases.Lease):
    """What `self.lease` is. It is held until a test says otherwise.

    Attributes:
        lost_at_check: Which call of `check()` finds it lost, the first being 1; None for none.
        checks: How often `check()` was called.
        is_released: Did the task give the GPU back early?
    """

    def __init__(self, gpu: StandInGPU) -> None:
        super().__init__()
        self._gpu = gpu
        self._fence: int | None = 1
        self.lost_at_check: int | None = None
        self.checks = 0
        self.is_released = False

    @property
    def fence(self) -> int | None:
        """A number that may be set; 1 at first."""
        return self._fence

    @fence.setter
    def fence(self, number: int | None) -> None:
        self._fence = number

    @property
    def lost(self) -> bool:
        """May be set. As with a real lease, it is False once the task has given the GPU back."""
        return self._is_lost and not self.is_released

    @lost.setter
    def lost(self, is_lost: bool) -> None:
        self._is_lost = is_lost

    def check(self) -> None:
        """Raises LeaseLost where it is lost, in the words of a real lease."""
        self.checks += 1
        if self.lost_at_check is not None and self.checks >= self.lost_at_check:
            self._is_lost = True
        if self.lost:
            message = f"the lease of GPU {self._gpu.id} (fence {self.fence}) went to another holder"
            raise LeaseLost(message)

    def release(self) -> None:
        """Gives nothing back, but remembers it."""
        self.is_released = True


@dataclass
class StandIn:
    """What stands in for the GPU and the lease of every task that runs without one."""

    gpu: StandInGPU = field(default_factory=StandInGPU)
    lease: StandInLease = field(init=False)

    def __post_init__(self) -> None:
        self.lease = StandInLease(self.gpu)


@contextmanager
def standing_in() -> Iterator[StandIn]:
    """Puts one in; as long as the block lasts, tasks without a lease see it."""
    one = StandIn()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "NO_GPU", one.gpu)
        patch.setattr(leases, "_NO_LEASE", one.lease)
        yield one
