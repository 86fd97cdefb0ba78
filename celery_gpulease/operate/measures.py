"""What the exporter measures: names by Prometheus' conventions, and what each means. Never a task's id as a label."""

from __future__ import annotations

from typing import Final

from celery_gpulease.tally import Measure

#: From 50 ms to 4 h.
BUCKETS: Final = (
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0,
)  # fmt: skip
STATES: Final = ("free", "leased", "draining", "quarantined", "offline")
#: What the ledger counts, so that each is there from the start, and its first step is seen as one.
EVENTS: Final = (
    "bumped", "claimed", "corrected", "deferred", "drained", "dropped", "ended", "ending", "forced", "gave_up",
    "given_back", "held", "left", "offline", "promoted", "quarantine_ended", "quarantined", "reaped", "regained",
    "released", "removed", "requeued", "rerouted", "robbed", "scheduled", "started", "superseded", "undrained",
    "vanished",
)  # fmt: skip
#: Of these, the ways in which a run loses its lease.
LOSSES: Final = ("forced", "reaped", "robbed")

# as it is now

UP: Final = Measure("gpulease_up", "Does the Redis that holds the leases answer? 1 or 0; without it, nothing else is.")
#: `UUID` is spelt as dcgm-exporter spells it: so the two can be joined.
GPU_STATE: Final = Measure("gpulease_gpu_state", "1 for the state that this GPU is in.", ("gpu", "UUID", "state"))
GPU_INFO: Final = Measure(
    "gpulease_gpu_info",
    "Where this GPU is, and whom it serves.",
    ("gpu", "UUID", "host", "index", "pools"),
)
GPU_HELD: Final = Measure("gpulease_gpu_held_seconds", "For how long the task of now has had this GPU.", ("gpu",))
LEASE_TTL: Final = Measure(
    "gpulease_gpu_lease_ttl_seconds",
    "What is left of this GPU's lease; -1 for one that never ends.",
    ("gpu",),
)
PENDING: Final = Measure("gpulease_pending_tasks", "Tasks that wait in this pool's line.", ("pool",))
OLDEST: Final = Measure("gpulease_oldest_pending_seconds", "For how long the oldest of them has waited.", ("pool",))
SCHEDULED: Final = Measure("gpulease_scheduled_tasks", "Tasks of this pool that are not due yet.", ("pool",))

POOL_GPUS: Final = Measure(
    "gpulease_pool_gpus",
    "GPUs that serve this pool, by state; one that serves several counts in each.",
    ("pool", "state"),
)

# since this Redis knows of us: the ledger counts

EVENT: Final = Measure(
    "gpulease_events_total",
    "How often each thing has happened, by the journal's word for it.",
    ("event",),
)
LOST: Final = Measure(
    "gpulease_lost_leases_total",
    "Leases that a run lost: reaped (not renewed in time, or its worker died), robbed (another program "
    "has the GPU), forced (by order).",
    ("how",),
)

# since this exporter began: it follows the journal

CLAIMS: Final = Measure(
    "gpulease_claims_total",
    "Claims by who made them: the sender's call (send), the release of the task before (hand_over), or anybody else.",
    ("source",),
)
RELEASES: Final = Measure(
    "gpulease_releases_total",
    "Leases that were given back, or taken, by the reason.",
    ("reason",),
)
REDELIVERIES: Final = Measure(
    "gpulease_redeliveries_total",
    "Tasks that went back to the line, by the reason.",
    ("reason",),
)
DUPLICATES: Final = Measure(
    "gpulease_duplicates_dropped_total",
    "Messages that were not run, since their claim was over (stale, unknown) or another request had it (twice).",
    ("reason",),
)
CORRECTIONS: Final = Measure("gpulease_corrections_total", "What a reconciliation has put right, by kind.", ("kind",))
WAITING: Final = Measure(
    "gpulease_waiting_seconds",
    "How long tasks waited: from when they were held, due or back in the line until they started.",
    ("pool",),
    BUCKETS,
)
HOLDING: Final = Measure(
    "gpulease_holding_seconds",
    "How long GPUs were held: from the claim until the lease was given back or lost.",
    ("pool",),
    BUCKETS,
)
GAP: Final = Measure(
    "gpulease_gap_seconds",
    "From the end of a lease until the next task started on that GPU, where that task waited already.",
    ("pool",),
    BUCKETS,
)
IDLE: Final = Measure(
    "gpulease_idle_while_pending_seconds_total",
    "Seconds that a GPU was free, open and alive while a task waited that it serves.",
    ("gpu",),
)

#: What goes back to the line does so for one of these; the words of the scripts, then those of workers.
REQUEUED: Final = (
    "reaped", "shutdown", "unstarted", "forced", "drained", "foreign lease", "forgotten", "its worker died",
    "lost on its way", "reconciled", "regained by a run", "taken over",
    "START was not answered", "dropped by Celery", "idle holder", "its end could not be stored",
    "its end was not told", "its process died", "its task has ended without it", "lost", "rejected", "robbed",
)  # fmt: skip
ENDED: Final = ("cancelled", "damaged", "expired", "lease_lost", "unstarted")
CORRECTED: Final = (
    "GPU out of step", "flags", "idle holder", "index out of step", "job without lease", "lapsed lease",
    "missed event", "not started", "offline", "ticket out of place",
)  # fmt: skip
#: All that may be a label there; whatever else a stranger has written into the journal is `tally.OTHER`.
LABELS: Final = {
    CLAIMS: frozenset({"send", "hand_over"}),
    RELEASES: frozenset(
        {"ended", "early", "robbed", "rate limit", "superseded", "left", "vanished", "gave_up", *REQUEUED, *ENDED}
    ),
    REDELIVERIES: frozenset(REQUEUED),
    DUPLICATES: frozenset({"stale", "twice", "unknown"}),
    CORRECTIONS: frozenset(CORRECTED),
}
#: What these are known to count, so that each is there from the start too; other words come when they come.
KNOWN: Final = (
    (CLAIMS, ("send", "hand_over", "other")),
    (RELEASES, ("ended", "early", "reaped", "robbed", "forced", "lease_lost", "shutdown", "rate limit")),
    (REDELIVERIES, ("reaped", "its process died", "shutdown", "unstarted")),
    (DUPLICATES, ("stale", "twice", "unknown")),
)
