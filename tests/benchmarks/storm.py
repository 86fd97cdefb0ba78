"""Everything at once: how long a single call keeps the server from everybody else."""

import time

from tests.benchmarks.fleet import Fleet, batched, undisturbed
from tests.benchmarks.machine import usual_server
from tests.benchmarks.table import Table, short

#: Microseconds below which a call is of no interest here.
LEAST = 300


def all_at_once(quick):
    """The longest time for which one call blocked the server, when every GPU becomes free and 100 000 wait."""
    gpus, waiting = (500, 5000) if quick else (10_000, 100_000)
    lines = []
    with undisturbed(usual_server()) as one:
        fleet = Fleet(one.url)
        for storm in (arrive, vanish, lapse, come_due, expire):
            fleet.client.flushall()
            names = fleet.join(gpus)
            with fleet.watch(LEAST) as times:
                storm(fleet, names, waiting)
            lines += [(storm.__doc__, script, str(len(found)), longest(found)) for script, found in times.items()]
        fleet.close()
    title = f"{short(gpus)} GPUs free at once, {short(waiting)} tasks wait: the longest call (at most 5 ms)"
    return Table(title, ("", "operation", f"calls above {LEAST / 1000} ms", "longest"), lines)


def longest(found):
    """Of these microseconds."""
    return f"{max(found) / 1000:.2f} ms"


def arrive(fleet, gpus, waiting):
    """Every GPU is free, and the tasks come."""
    fleet.fill(waiting)


def vanish(fleet, gpus, waiting):
    """Every lease and claim is deleted; workers claim, senders send, reconcilers look."""
    fleet.fill(len(gpus) + waiting)
    for page in batched(gpus):
        fleet.client.delete(*(fleet.ledger.keys.lease(gpu) for gpu in page))
        fleet.client.delete(*(fleet.key("claim", gpu) for gpu in page))
        for gpu in page[:100]:
            fleet.ledger.inspect(gpu, change=True)
            fleet.ledger.dispatch(gpu)
        fleet.fill(100)
        fleet.ledger._claiming_each("claim", ({"gpu": gpu, "program_fence": 0, "hold_ms": 0} for gpu in page))


def lapse(fleet, gpus, waiting):
    """Every lease lapses while its task runs; half of the workers are dead, half say that they live."""
    fleet.fill(len(gpus) + waiting)
    runs = [fleet.start(fleet.pop(gpu)) for gpu in gpus]
    for page in batched(runs):
        fleet.client.delete(*(fleet.ledger.keys.lease(one.gpu) for one in page))
        fleet.client.zadd(fleet.key("deadlines"), {one.gpu: 1 for one in page})
        for one in page[::2]:
            fleet.ledger.renew(one)
            fleet.report(one)
        while lapsed := fleet.ledger.agenda().lapsed:
            for gpu in lapsed:
                fleet.ledger.reap(gpu)


def come_due(fleet, gpus, waiting):
    """Every GPU is free, and all tasks are due at once."""
    fleet.fill(waiting, eta_ms=round(time.time() + 3600) * 1000)
    make_old(fleet, "scheduled")
    while any(fleet.ledger.promote()):
        pass


def expire(fleet, gpus, waiting):
    """The tasks that wait expire at once, and GPUs are released."""
    fleet.fill(len(gpus))
    fleet.fill(waiting, expires_ms=round(time.time() + 3600) * 1000)
    runs = [fleet.start(fleet.pop(gpu)) for gpu in gpus[:200]]
    for page in make_old(fleet, "expiring"):
        with fleet.client.pipeline(transaction=False) as pipe:
            for ticket in page:
                pipe.hset(fleet.key("ticket", ticket), "expires_ms", 1)
            pipe.execute()
    for one in runs:
        fleet.ledger.release(one)
    while any(fleet.ledger.promote()):
        pass


def make_old(fleet, index):
    """Everybody's time there has come; who that is, in pages."""
    pages = list(batched(fleet.client.zrange(fleet.key(index), 0, -1)))
    for page in pages:
        fleet.client.zadd(fleet.key(index), dict.fromkeys(page, 1))
    return pages
