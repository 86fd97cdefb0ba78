"""Every operation of the ledger, so many times, on a fleet of a certain size."""

import time
from itertools import cycle, islice

from tests.benchmarks.fleet import POOL

OTHER = "other"


class Site:
    """A fleet of which half of the GPUs are busy, and half are free in a pool of their own."""

    def __init__(self, fleet, calls):
        self.fleet, self.calls = fleet, calls
        self.runs, self.free = {}, []

    def grow(self, gpus, waiting):
        """To so many."""
        half = gpus // 2
        self.free = self.fleet.join(half, OTHER, of="other")
        self.fleet.fill(max(0, waiting + half - len(self.runs) - self.fleet.waiting()))
        for gpu in self.fleet.join(half):
            if gpu not in self.runs:
                self.runs[gpu] = self.fleet.start(self.fleet.pop(gpu))

    def operate(self):
        """Each operation → the microseconds of each of its calls."""
        found = {}
        for one in (idle_gpus, busy_gpus, requeues, claims, reaps, cancels, promotes, workers, looks):
            with self.fleet.watch() as times:
                names = one(self.fleet, self.runs, self.calls)
            found.update({title: times[script] for script, title in names.items()})
        return found


def some(many, calls):
    """So many of them, from the first again where they are not enough."""
    return islice(cycle(list(many)), calls)


def idle_gpus(fleet, runs, calls):
    """A task comes, and a GPU is free."""
    for _ in range(calls):
        gpu = fleet.client.zrange(fleet.key("free", OTHER), 0, 0)[0]
        fleet.ledger.hold(fleet.held(OTHER))
        claim = fleet.start(fleet.pop(gpu))
        fleet.beat(claim)
        fleet.ledger.renew(claim)
        fleet.report(claim)
        fleet.ledger.release(claim)
        fleet.ledger.claim(gpu)
    return {
        "hold": "hold, a GPU is free",
        "start": "start",
        "beat": "beat",
        "renew": "renew",
        "report": "report",
        "release": "release, nobody waits",
        "claim": "claim, nobody waits",
    }


def busy_gpus(fleet, runs, calls):
    """A task comes, and none is; then one is handed over."""
    for gpu in some(runs, calls):
        fleet.ledger.hold(fleet.held())
        fleet.ledger.release(runs[gpu])
        runs[gpu] = fleet.start(fleet.pop(gpu))
    return {"hold": "hold, every GPU is busy", "release": "release, hand-over"}


def requeues(fleet, runs, calls):
    """A run goes back to its place, and its GPU takes it again."""
    for gpu in some(runs, calls):
        fleet.ledger.requeue(runs[gpu], "asked for", counted=False, wanted=True)
        runs[gpu] = fleet.start(fleet.pop(gpu))
    return {"requeue": "requeue"}


def claims(fleet, runs, calls):
    """A GPU has become free, and its worker claims."""
    for gpu in some(runs, calls):
        fleet.ledger.hold(fleet.held())
        fleet.client.hset(fleet.key("closed", gpu), "drain", 1)
        fleet.ledger.release(runs[gpu])
        fleet.client.hdel(fleet.key("closed", gpu), "drain")
        fleet.ledger.claim(gpu)
        runs[gpu] = fleet.start(fleet.pop(gpu))
    return {"claim": "claim, somebody waits"}


def reaps(fleet, runs, calls):
    """Its holder is dead."""
    for gpu in some(runs, calls):
        fleet.ledger.hold(fleet.held())
        fleet.client.delete(fleet.ledger.keys.lease(gpu))
        fleet.client.zadd(fleet.key("deadlines"), {gpu: 1})
        fleet.ledger.reap(gpu)
        runs[gpu] = fleet.start(fleet.pop(gpu))
    return {"reap": "reap"}


def cancels(fleet, runs, calls):
    """What waits is revoked."""
    for _ in range(calls):
        held = fleet.held()
        fleet.ledger.hold(held)
        fleet.ledger.cancel(held.task_id)
    return {"cancel": "cancel"}


def promotes(fleet, runs, calls):
    """A task was sent for later, and is due."""
    for _ in range(calls):
        held = fleet.held(eta_ms=round(time.time() + 3600) * 1000)
        fleet.ledger.hold(held)
        fleet.client.zadd(fleet.key("scheduled"), {held.ticket: 1})
        fleet.ledger.promote()
    return {"hold": "hold, for later", "promote": "promote, one is due"}


def workers(fleet, runs, calls):
    """A worker comes again, and asks what is due."""
    for gpu in some(runs, calls):
        fleet.ledger.join(fleet.device(gpu), (POOL,), fleet.presence(gpu))
        fleet.ledger.agenda()
    return {"join": "join", "agenda": "agenda"}


def looks(fleet, runs, calls):
    """The reconciler's, at one GPU and at one ticket; and a page of GPUs as `status` shows it."""
    tickets = fleet.client.zrange(fleet.key("pending", POOL), 0, calls - 1)
    for gpu, ticket in zip(some(runs, calls), some(tickets, calls), strict=True):
        fleet.ledger.inspect(gpu, change=True)
        fleet.ledger.correct_gpu(gpu, "", change=True)
        fleet.ledger.correct_ticket(ticket, f"pending:{POOL}", change=True)
        fleet.ledger.correct_counts(change=True)
    return {
        "inspect": "reconcile: a GPU",
        "correct_gpu": "reconcile: its keys",
        "correct_ticket": "reconcile: a ticket",
        "correct_counts": "reconcile: the counts",
    }
