"""Why a task waits, and what has become of it, in words for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_gpulease.ledger.views import GPURow

#: What `status` says of a GPU whose worker has closed: the ledger does not know which.
CLOSING: Final = "its worker is stopping, or takes no new work"

#: What a detail of the journal means, where it is one word of ours.
DETAILS: Final = {
    "lease_lost": "its process or its worker died too often, or it may run only once (LeaseLost)",
    "unstarted": "no worker started it in time",
    "damaged": "it was damaged from outside",
    "reaped": "its worker died, or was cut off for longer than the ttl",
    "robbed": "another holder had its lease",
    "taken over": "its worker was gone when the next one came for its GPU",
    "forgotten": "Redis had lost what it knew of its run",
    "reconciled": "the reconciler found its run over",
    "lost": "its lease was lost",
    "forced": "an operator took its lease away",
    "shutdown": "its worker stopped",
    "rejected": "the task asked for it (Reject)",
    "stale": "its claim is over",
    "twice": "another request has it",
    "unknown": "there is no such ticket",
}


def why_pool_waits(pool: str, gpus: Sequence[GPURow]) -> str:
    """What keeps the first in a pool's line from a GPU."""
    states = sorted({shown(gpu) for gpu in gpus if pool in gpu.pools})
    if not states:
        return f"no GPU serves pool {pool!r}"
    if "free" in states:
        return f"a GPU of pool {pool!r} is free, and about to take it"
    return f"every GPU of pool {pool!r} is " + " or ".join(states)


def why_gpu_waits(name: str, gpus: Sequence[GPURow]) -> str:
    """The same in the line of one GPU, by either name of it."""
    states = [shown(gpu) for gpu in gpus if gpu.id == name] or [shown(gpu) for gpu in gpus if gpu.name == name]
    return f"pinned to {name}, which " + (f"is {states[0]}" if states else "no worker has ever served")


def why_not_due(seconds: float, deliveries: int) -> str:
    """What waits for its time. What was given out before, and waits so again, has died."""
    again = f", since its runs died {deliveries} times" if deliveries > 1 else ""
    return f"not due yet: in {seconds:.0f} s{again}"


def shown(gpu: GPURow) -> str:
    """A GPU's state, as a reason to wait."""
    if gpu.state == "free":
        return gpu.reason or "free"
    if gpu.state == "leased" and (gpu.reason or "").endswith(CLOSING):
        return "leased, and takes nothing after that"
    return "drained" if gpu.state == "draining" else gpu.state
