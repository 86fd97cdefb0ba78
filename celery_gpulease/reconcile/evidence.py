"""The evidence: one GPU in Redis, beside its worker's own report of what it really runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_gpulease.model import Claim

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger


@dataclass(frozen=True)
class Evidence:
    """What is known of one GPU, all from one moment by the server's clock.

    Attributes:
        gpu: Its id.
        is_claimable: Living worker, no lease, nothing that closes it.
        is_astray: The index of free GPUs says otherwise.
        has_waiters: Somebody waits in a line that it serves.
        claim: The claim that the ledger knows.
        claim_state: claimed, started or tail.
        lease: The lease's value.
        is_lapsed: The claim's deadline has passed, and the lease is not its own any more.
        runs_its_claim: The worker lives and its report, younger than two heartbeats, says that it runs this claim.
    """

    gpu: str
    is_claimable: bool
    is_astray: bool
    has_waiters: bool
    claim: Claim | None
    claim_state: str | None
    lease: str | None
    is_lapsed: bool
    runs_its_claim: bool


def gather(ledger: Ledger, gpu: str) -> Evidence:
    """Looks at one GPU.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    (now, alive, claimable, astray, waits, state, token, lease, running, reported, _started, ticket, fence, heartbeat,
     deadline) = ledger.inspect(gpu, change=False)  # fmt: skip
    is_recent = reported is not None and now - int(reported) < 2 * int(heartbeat or 0)
    return Evidence(
        gpu=gpu,
        is_claimable=bool(claimable),
        is_astray=bool(astray),
        has_waiters=bool(waits),
        claim=Claim(ticket, gpu, token, int(fence), 0) if ticket else None,
        claim_state=state,
        lease=lease,
        is_lapsed=bool(ticket) and lease != token and int(deadline or 0) <= now,
        runs_its_claim=bool(alive) and is_recent and running == token,
    )
