"""What each operation costs the server, however many GPUs there are and tasks wait; and what a waiting task costs."""

import shutil
import statistics
import time
from itertools import cycle, islice

from celery_gpulease.embedded import FINDERS, EmbeddedServer
from celery_gpulease.ledger.views import gpu_rows, pending_rows, pool_rows
from celery_gpulease.settings import Settings
from tests.benchmarks.fleet import POOL, Fleet, batched
from tests.benchmarks.table import Table

#: Each path is one server's: GPUs and waiting tasks, which only become more.
QUICK_PATHS = [[(10, 10), (10, 10_000), (1000, 10_000)], [(1000, 10)]]
PATHS = [
    [(10, 10), (10, 100_000), (10, 1_000_000), (1000, 1_000_000), (10_000, 1_000_000)],
    [(1000, 10), (1000, 100_000), (10_000, 100_000)],
    [(10_000, 10)],
]
OTHER = "other"
#: Bytes that a million waiting tasks take at most.
MEMORY_OF_A_MILLION = 3 * 2**30


def measure(quick):
    """Every operation at every size; memory; heartbeats; and everything free at once."""
    tables = costs(QUICK_PATHS if quick else PATHS, 50 if quick else 200)
    return [*tables, held_tasks(quick), heartbeats(quick), all_at_once(quick)]


def server():
    """The server that most people run; where it is not installed, the demo's."""
    return EmbeddedServer(binary=shutil.which("redis-server"))


# every operation


def costs(paths, calls):
    """Median server time of each operation at each size."""
    found, views = {}, {}
    for path in paths:
        with server() as one:
            site = Site(Fleet(one.url), calls)
            for size in path:
                if size[1] >= 1_000_000 and available() < MEMORY_OF_A_MILLION:
                    views[size] = ("no memory for it",) * (len(VIEWED) - 1)
                    continue
                site.grow(*size)
                found[size] = site.operate()
                views[size] = shown(site.fleet)
            site.fleet.close()
    return [of_operations(found, calls), of_views(views)]


def of_operations(found, calls):
    """Their table: a line for each, a column for each size."""
    sizes = sorted(found)
    lines = []
    for name in found[sizes[0]]:
        medians = [statistics.median(found[size][name]) for size in sizes]
        lines.append((name, *(f"{one:.0f} µs" for one in medians), f"{medians[-1] / medians[0]:.2f} ×"))
    title = f"Server time of one call, median of {calls}: GPUs × waiting tasks (at most 30 µs)"
    return Table(title, ("operation", *map(named, sizes), "the last by the first"), lines)


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
        fleet.ledger.renew(claim)
        fleet.report(claim)
        fleet.ledger.release(claim)
        fleet.ledger.claim(gpu)
    return {
        "hold": "hold, a GPU is free",
        "start": "start",
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
    for page in batched(some(runs, calls)):
        devices = [fleet.device(gpu) for gpu in page]
        for device in devices:
            fleet.ledger.join(device, (POOL,), fleet.presence(device.id))
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


# views

VIEWED = (
    "GPUs × waiting",
    "`status`: CPU of the server",
    "longest command",
    "`pending`, its first 100",
    "longest command",
)


def of_views(found):
    """Their table."""
    lines = [(named(size), *cells) for size, cells in sorted(found.items())]
    return Table("What people look at: all that the server is asked for one view", VIEWED, lines)


def shown(fleet):
    """What two views cost the server."""

    def status():
        pool_rows(fleet.ledger, gpu_rows(fleet.ledger))

    def pending():
        list(islice(pending_rows(fleet.ledger, []), 100))

    cells = []
    for view in (status, pending):
        fleet.client.config_set("slowlog-log-slower-than", LONGEST_FROM)
        fleet.client.slowlog_reset()
        with fleet.cpu() as seconds:
            view()
        longest = max((one["duration"] for one in fleet.client.slowlog_get(-1)), default=LONGEST_FROM)
        cells += [f"{seconds[0] * 1000:.1f} ms", f"{longest / 1000:.2f} ms"]
    return tuple(cells)


#: Microseconds below which no command of a view is of interest.
LONGEST_FROM = 50


# memory


def held_tasks(quick):
    """Bytes of a waiting task beyond its message, on each server that is installed."""
    number, lines = 10_000 if quick else 100_000, []
    for name, find in FINDERS.items():
        if binary := find():
            with EmbeddedServer(binary=binary) as one:
                of_each, message = memory_of_each(Fleet(one.url), number)
            lines.append((name, f"{message} bytes", f"{of_each - message:.0f} bytes", "700 bytes"))
    return Table(f"Memory of a waiting task, of {short(number)}", ("", "its message", "beside it", "at most"), lines)


def memory_of_each(fleet, number):
    """Bytes of each of so many, and of its message, once the journal is as long as it gets."""
    fleet.fill(11_000)
    before = fleet.memory()
    fleet.fill(number)
    found = (fleet.memory() - before) / number, len(fleet.held().message)
    fleet.close()
    return found


# heartbeats


def heartbeats(quick):
    """The share of one core that the heartbeats of 10 000 busy GPUs take, at the default ttl."""
    number = 1000 if quick else 10_000
    with server() as one:
        fleet = Fleet(one.url)
        fleet.join(number)
        fleet.fill(number)
        runs = [fleet.start(fleet.pop(gpu)) for gpu in fleet.client.zrange(fleet.key("gpus"), 0, -1)]
        with fleet.cpu() as seconds:
            for claim in runs:
                fleet.ledger.renew(claim)
                fleet.report(claim)
        fleet.close()
    share = seconds[0] / number * 10_000 / Settings().heartbeat_interval
    line = ("RENEW and REPORT of 10 000 GPUs", f"{seconds[0] / number * 1e6:.0f} µs", f"{share:.1%}", "10 %")
    return Table("Heartbeats every 10 s", ("", "the server's CPU, of one GPU", "of one core", "at most"), [line])


# all at once


def all_at_once(quick):
    """The longest time for which one call blocked the server, when every GPU becomes free and 100 000 wait."""
    gpus, waiting = (500, 5000) if quick else (10_000, 100_000)
    longest = {}
    with server() as one:
        fleet = Fleet(one.url)
        for storm in (arrive, vanish, lapse, come_due, expire):
            fleet.client.flushall()
            names = fleet.join(gpus)
            with fleet.watch() as times:
                storm(fleet, names, waiting)
            for script, found in times.items():
                longest.setdefault((storm.__doc__, script), []).extend(found)
        fleet.close()
    title = f"{short(gpus)} GPUs free at once, {short(waiting)} tasks wait: the longest call (at most 5 ms)"
    lines = [(doc, script, str(len(found)), f"{max(found) / 1000:.2f} ms") for (doc, script), found in longest.items()]
    return Table(title, ("", "operation", "calls", "longest"), lines)


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
        fleet.ledger._claiming_each("claim", ({"gpu": gpu} for gpu in page))


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
    for ticket in fleet.client.zrange(fleet.key("pending", POOL), 0, -1):
        fleet.client.hset(fleet.key("ticket", ticket), "expires_ms", 1)
    make_old(fleet, "expiring")
    for one in runs:
        fleet.ledger.release(one)
    while any(fleet.ledger.promote()):
        pass


def make_old(fleet, index):
    """Everybody's time there has come."""
    for page in batched(fleet.client.zrange(fleet.key(index), 0, -1)):
        fleet.client.zadd(fleet.key(index), dict.fromkeys(page, 1))


# words


def named(size):
    """GPUs × waiting tasks."""
    return " × ".join(map(short, size))


def short(number):
    """As people write it."""
    return f"{number:,}".replace(",", " ")


def available():
    """Bytes of memory that are free, also those that caches would give up."""
    with open("/proc/meminfo", encoding="ascii") as told:
        kilobytes = next(line.split()[1] for line in told if line.startswith("MemAvailable"))
    return int(kilobytes) * 1024
