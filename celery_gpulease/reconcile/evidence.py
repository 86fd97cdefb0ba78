"""The evidence: one GPU in Redis, beside its worker's own report of what it really runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_gpulease.model import Claim

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger

#: Milliseconds after which the event of a lease that vanished has reached its worker, or never will.
EVENT_MS: Final = 500


@dataclass(frozen=True)
class Evidence:
    """What is known of one GPU, all from one moment by the server's clock.

    Attributes:
        gpu: Its id.
        is_alive: Its worker lives.
        is_claimable: Living worker, no lease, nothing that closes it.
        is_astray: The index of free GPUs says otherwise.
        is_overlooked: It is free, somebody waits, and it is not listed just now: a lease that has just gone is being
            told to its worker.
        claim: The claim that the ledger knows.
        claim_state: claimed, started or tail.
        lease: The lease's value.
        is_lapsed: The claim is over, as REAP sees it.
        runs_its_claim: The worker lives and its report, younger than two heartbeats, says that it runs this claim.
        is_idle: The worker lives and its report, younger than two heartbeats and younger than START by more than a
            start may take, says that it runs and holds nothing. A report from before START says nothing of the run.
    """

    gpu: str
    is_alive: bool
    is_claimable: bool
    is_astray: bool
    is_overlooked: bool
    claim: Claim | None
    claim_state: str | None
    lease: str | None
    is_lapsed: bool
    runs_its_claim: bool
    is_idle: bool


def gather(ledger: Ledger, gpu: str) -> Evidence:
    """Looks at one GPU.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    (now, alive, claimable, astray, waits, state, token, lease, running, reported, started, ticket, fence, heartbeat,
     ttl, is_over, free_since) = ledger.inspect(gpu, change=False)  # fmt: skip
    is_recent = bool(alive) and reported is not None and abs(now - int(reported)) < 2 * int(heartbeat or 0)
    may_start_until = int(started or 0) + int(ttl or 0) // 2
    return Evidence(
        gpu=gpu,
        is_alive=bool(alive),
        is_claimable=bool(claimable),
        is_astray=bool(astray),
        is_overlooked=bool(claimable and waits) and now - float(free_since or 0) > EVENT_MS,
        claim=Claim(ticket, gpu, token, int(fence or 0), 0) if ticket and token else None,
        claim_state=state,
        lease=lease,
        is_lapsed=bool(is_over),
        runs_its_claim=is_recent and running == token,
        is_idle=is_recent and running == "" and may_start_until < int(reported or 0) <= now,
    )
