"""What each operation costs the server, however many GPUs there are and tasks wait; and what a waiting task costs."""

import statistics
from itertools import islice
from pathlib import Path

from celery_gpulease.embedded import FINDERS, EmbeddedServer
from celery_gpulease.ledger.views import gpu_rows, pending_rows, pool_rows
from celery_gpulease.settings import Settings
from tests.benchmarks.fleet import Fleet, undisturbed
from tests.benchmarks.machine import usual_server
from tests.benchmarks.operations import Site
from tests.benchmarks.storm import all_at_once
from tests.benchmarks.table import Table, short

#: Each path is one server's: GPUs and waiting tasks, which only become more.
QUICK_PATHS = [[(10, 10), (10, 10_000), (1000, 10_000)], [(1000, 10)]]
PATHS = [
    [(10, 10), (10, 100_000), (10, 1_000_000), (1000, 1_000_000), (10_000, 1_000_000)],
    [(1000, 10), (1000, 100_000), (10_000, 100_000)],
    [(10_000, 10)],
]
#: Bytes that a million waiting tasks take at most.
MEMORY_OF_A_MILLION = 3 * 2**30


def measure(quick):
    """Every operation at every size; memory; heartbeats; and everything free at once."""
    tables = costs(QUICK_PATHS if quick else PATHS, 50 if quick else 200)
    return [*tables, held_tasks(quick), heartbeats(quick), all_at_once(quick)]


# every operation


def costs(paths, calls):
    """Median server time of each operation at each size."""
    found, views = {}, {}
    for path in paths:
        with undisturbed(usual_server()) as one:
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
            with undisturbed(EmbeddedServer(binary=binary)) as one:
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
    with undisturbed(usual_server()) as one:
        fleet = Fleet(one.url)
        fleet.join(number)
        fleet.fill(number)
        runs = [fleet.start(fleet.pop(gpu)) for gpu in fleet.client.zrange(fleet.key("gpus"), 0, -1)]
        with fleet.cpu() as seconds:
            for claim in runs:
                fleet.beat(claim)
        fleet.close()
    share = seconds[0] / number * 10_000 / Settings().heartbeat_interval
    line = ("BEAT of 10 000 GPUs", f"{seconds[0] / number * 1e6:.0f} µs", f"{share:.1%}", "10 %")
    return Table("Heartbeats every 10 s", ("", "the server's CPU, of one GPU", "of one core", "at most"), [line])


# words


def named(size):
    """GPUs × waiting tasks."""
    return " × ".join(map(short, size))


def available():
    """Bytes of memory that are free, also those that caches would give up."""
    told = Path("/proc/meminfo").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in told if line.startswith("MemAvailable"))
