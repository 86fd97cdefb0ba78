"""`with reserve(app, pool="a100") as gpu:` — any Python program under a lease."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_gpulease.devices import show_only
from celery_gpulease.exceptions import LeaseLost, LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.model import DEFAULT_POOL, GPU, check_pool
from celery_gpulease.programs.keeping import Keeper
from celery_gpulease.programs.waiting import Waiter
from celery_gpulease.sending.envelope import checked_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.programs.waiting import Held

#: Not Celery's: in a process that has set up no loggers it would swallow what it is told.
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReservedGPU(GPU):
    """The GPU of a `with reserve(…)` block: `id`, `index` and the lease's `fence`, which grows with every claim."""

    fence: int
    _keeper: Keeper = field(repr=False)

    @property
    def lost(self) -> bool:
        """Did the lease go to another holder? Never raises."""
        return self._keeper.is_lost

    def check(self) -> None:
        """Raises LeaseLost once the lease is lost: call it at checkpoints."""
        if self.lost:
            message = f"the lease of GPU {self.id} (fence {self.fence}) went to another holder"
            raise LeaseLost(message)


@contextmanager
def reserve(
    app: Any, pool: str = DEFAULT_POOL, *, priority: int = 0, timeout: float | None = None
) -> Iterator[ReservedGPU]:
    """Waits, in the same line as the tasks, for a GPU of this host, and holds it for the block.

    In the block `CUDA_VISIBLE_DEVICES` shows this GPU only, to this process and what it starts: import what uses CUDA
    there. A thread keeps the lease. Where it is lost that is logged, and `gpu.check()` raises.

    Args:
        app: The Celery app, on which `GPULease` was called.
        pool: Whose GPUs will do.
        priority: As the broker counts.
        timeout: Seconds within which its turn must come; None for whenever.

    Raises:
        ConfigurationError: No GPU of this host serves the pool, or there is no such priority or timeout.
        LedgerUnavailable: Redis does not answer.
        TurnCancelled: `gpulease cancel` took it back while it waited.
        TurnTimeout: Its turn did not come in time.
    """
    ledger = installation(app).ledger
    held = Waiter(ledger, f"reserve: {_own_name()}", check_pool(pool), checked_priority(priority)).wait(timeout)
    with kept(ledger, held, lambda: None) as keeper, _shown(held):
        yield ReservedGPU(held.device.id, held.device.index, held.claim.fence, keeper)


@contextmanager
def kept(
    ledger: Ledger, held: Held, on_lost: Callable[[], None], on_renewed: Callable[[float], None] = lambda _: None
) -> Iterator[Keeper]:
    """Keeps a lease for the block, and gives it back, whatever happens there.

    A child that was forked in the block and leaves it (`sys.exit`) gives nothing back: its parent runs on.

    Args:
        ledger: The ledger.
        held: What is kept.
        on_lost: Called in another thread, once the lease is lost.
        on_renewed: Called there with each moment, by the monotonic clock, from which it lasts for a ttl.
    """
    keeper, pid = Keeper(ledger, held.claim, held.ttl, on_lost, on_renewed), os.getpid()
    try:
        keeper.start()
        yield keeper
    except BaseException as error:
        keeper.how = f"it raised {type(error).__name__}"  # what it says may be a secret
        raise
    finally:
        if os.getpid() == pid:
            keeper.stop()
            give_back(ledger, held, keeper.how)


def give_back(ledger: Ledger, held: Held, how: str) -> None:
    """Releases the lease; where Redis does not answer, it ends with its ttl. `how` the program ended is told."""
    try:
        ledger.release(held.claim, how)
    except LedgerUnavailable as error:
        logger.warning("GPU %s is not given back, its lease ends with its ttl: %s", held.claim.gpu, error)


@contextmanager
def _shown(held: Held) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
    show_only(held.device)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)  # the block may have done so
            if value is not None:
                os.environ[name] = value


def _own_name() -> str:
    return Path(sys.argv[0]).name or "python" if sys.argv else "python"
