"""What only a GPU's worker can measure, and tells at its own port."""

from __future__ import annotations

from typing import Final

from celery_gpulease.tally import Measure

WAKEUPS: Final = Measure(
    "gpulease_worker_wakeups_total",
    "Times that this worker looked for work, by what woke it: an event (the lease's key vanished), a deadline, "
    "something due, the heartbeat's pace, a reconciliation, a new subscription, a neighbour, or that it is open again.",
    ("gpu", "source"),
)
RENEWALS: Final = Measure(
    "gpulease_worker_renewals_total",
    "Renewals of the leases of what runs here, by the ledger's answer; unanswered where Redis gave none.",
    ("gpu", "answer"),
)
TTL_LEFT: Final = Measure(
    "gpulease_worker_renewal_ttl_left_seconds",
    "What was left of a lease when its renewal was asked for, by this worker's own clock.",
    ("gpu",),
    (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
