"""The keys in Redis. `lua/include/keys.lua` builds the same names inside the scripts.

Each stands after `gpulease_key_prefix` (`gpu:`); times are the server's, in milliseconds.

==================== ======== ==========================================================================================
key                  type     what
==================== ======== ==========================================================================================
lease:<gpu>          string   the lease: its value is the holder's token, it always has a TTL. Its presence is *busy*
claim:<gpu>          hash     whose lease it is: ticket, token, fence, state (claimed, started, tail), claimed_ms,
                              started_ms, delivery. Outlives the lease, so that a dead holder's task is known
fence:<gpu>          integer  grows with every claim of this GPU: max(last + 1, now)
deadlines            zset     gpu by its lease's deadline, or its tail's: by then its heartbeat must have come
ticket:<id>          hash     one holding of one task: task_id, task, pool, pin, priority, score, eta_ms, expires_ms,
                              held_ms, state, deliveries and returns (absent: none), gpu, token, why, how (its last run
                              died), attempts, superseded, after (the ticket whose run sent this one again), stamps;
                              from START: nonce, acks_late, limit, stores_result, runs (how many), disowned (how many of
                              them, since the last asked for another: no end of
                              these counts), first_run_ms (when the first after them began), last_run (the token that
                              started last; only that run may come back after it was reaped), holder (the instance that
                              started it).
                              A program's (`gpulease run`) has no message: its pin is <host>/<pool>, its task_id its own
                              id, and waits_until says how long somebody certainly waits for its turn
message:<id>         string   the ticket's message, ready to send but for two holes. Apart from the ticket, whose hash
                              stays small enough for Redis' compact encoding
returned:<id>        set      the GPUs on which the ticket was claimed and not started
task:<task id>       hash     the tickets of a task id (a small hash is smaller than a small set)
pending:<pool>       zset     a line: tickets by priority * 2^45 + arrival
pinned:<gpu>         zset     the line of one GPU, which is served first
pinned:<host>/<pool> zset     the programs that wait for a GPU of this host, beside the line of the pool: of the first
                              in each, the one with the better place comes first
pinned_in:<pool>     zset     an index: the pinned tickets of a pool, by the ms of their arrival
lines                set      an index: the names of all these, also of some in which nobody waits any more
scheduled            zset     tickets by the time when they are due
scheduled_count      hash     pool → how many of them
expiring             zset     waiting tickets by the time when they expire
ending               zset     tickets whose end must still be written outside Redis, by when to try (again)
revoked              zset     ids of tasks that were revoked in the last 3 hours, and
revoked_stamps       zset     stamps: what comes of them ends at once
ended                zset     ids of tickets that ended in the last 15 minutes
arrival              integer  the last arrival number
free:<pool>          zset     an index, never the truth: GPUs believed free, by since when
gpus, heartbeats     zset     the registry: gpu by its worker's ttl, and by its heartbeat
device:<gpu>         hash     what its worker said of it: host, index, uuid, alias, model, memory_bytes, pools, ttl_ms,
                              heartbeat_ms; and its route, the list from which it takes its messages; other: the other
                              name of the device, where it has one. And its last report: running (a token), reported_ms,
                              presence (which outlives the other one); is_offline: the journal has said that its worker
                              is gone without a goodbye; stranger, stranger_ms: a foreign lease, since it was first seen
names                hash     any name of a GPU → its id
worker:<gpu>         string   presence: the living worker of this GPU (JSON), with a TTL
closed:<gpu>         hash     why no claim is made: drain, closing, quarantine (the reason) with until_ms, or with the
                              processes that are left there (JSON, read by its worker); device (the reason), while the
                              device itself is unwell. And how many quarantines since its last START, the last one
                              quarantined_by which ticket
routed:<gpu>         list     where the broker is not this Redis: messages on their way to the worker of this GPU
want:<gpu>           string   a foreign program's wish: while it exists nobody claims this GPU
pulse                hash     at, gpu: anybody's last heartbeat; grace_until: until when nothing started is reaped,
                              granted_at; reconciled_at; walk: where the reconciler's look at all tickets goes on
turn:reconcile       string   who reconciles now
turn:tell            string   which worker looks at the journal now, to tell monitors
turn:stamps:<digest> string   which worker looks for what bears these stamps, with a TTL
journal              stream   what happened to whom. Its consumer group `events`: who of the workers tells monitors
counters             hash     totals of the same
layout               hash     number: of the layout that all of this has (ledger/layout.py); version: who made it so
doctor:<name>:<type> any      what `doctor` tries commands out on, for a moment; and a wish for a GPU of that name
here:<gpu>           channel  wakes the worker of this GPU, and tells it of a program that starts there (its fence)
here:<ticket>        channel  wakes whoever waits to run a program, or runs it
queue:<db>:<queue>   channel  silent: whoever consumes this queue listens, and so is seen by workers with another prefix
==================== ======== ==========================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    """Builds keys for Python's side: only those that no script reaches."""

    prefix: str

    def pattern(self, kind: str = "") -> str:
        """What SCAN takes: all of our keys, or all that begin so."""
        return literally(self.prefix + kind) + "*"

    def lease(self, gpu: str) -> str:
        """The lease of a GPU; other programs rely on this name."""
        return f"{self.prefix}lease:{gpu}"

    def here(self, gpu: str) -> str:
        """The channel that wakes the worker of a GPU."""
        return f"{self.prefix}here:{gpu}"

    def routed(self, gpu: str) -> str:
        """What is on its way to the worker of a GPU, where no queue of the broker is in this Redis."""
        return f"{self.prefix}routed:{gpu}"

    def want(self, gpu: str) -> str:
        """A foreign program's wish for a GPU; other programs rely on this name."""
        return f"{self.prefix}want:{gpu}"

    def named(self, kind: str, name: str = "") -> str:
        """A key of this kind, `pending:<pool>` say, or one without a name, `scheduled`."""
        return f"{self.prefix}{kind}:{name}" if name else f"{self.prefix}{kind}"


def literally(text: str) -> str:
    """The part of a pattern of Redis that matches this text only."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
