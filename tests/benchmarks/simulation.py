"""Heavy-tailed jobs of ten minutes on 8 GPUs, on a virtual clock: who waits how long under which policy.

Ours are the real scripts on a real server, asked in the order of the virtual clock. Their own time decides nothing
here: leases last for a day of real time, and arrival is an order.
"""

import heapq
import itertools
import random
from collections import deque

from tests.benchmarks.fleet import POOL, Fleet
from tests.benchmarks.machine import usual_server
from tests.benchmarks.picture import draw
from tests.benchmarks.workload import DISTRIBUTIONS, LOADS, SEED, Run, jobs, judge, table

GPUS = 8
MEAN = 600.0
WARM_UP = 0.1  # of all jobs: the line is empty at first
#: Of events at the same moment.
_ORDER = itertools.count()


def measure(quick):
    """A table for each distribution, and the picture of both."""
    number, found = 400 if quick else 4000, {}
    for (name, duration), load in itertools.product(DISTRIBUTIONS.items(), LOADS):
        arrivals = jobs(duration, number, load, GPUS, MEAN)
        for policy, serve in POLICIES.items():
            found[name, policy, load] = judge(list(serve(arrivals)), GPUS, round(number * WARM_UP))
    if not quick:
        draw(found)
    return [_table(name, found) for name in DISTRIBUTIONS]


def _table(name, found):
    ours = {(policy, load): one for (distribution, policy, load), one in found.items() if distribution == name}
    title = f"Simulated: waits of jobs of 10 min ({name}) on {GPUS} GPUs"
    return table(title, ours, list(POLICIES), "min", 60.0)


# one line for each GPU


def by_choice(choose):
    """The sender chooses a GPU, in whose line the job waits; `choose` sees how many jobs each GPU has."""

    def serve(arrivals):
        free_at, ends = [0.0] * GPUS, [[] for _ in range(GPUS)]
        for number, (arrival, duration) in enumerate(arrivals):
            ends = [[end for end in one if end > arrival] for one in ends]
            gpu = choose(number, [len(one) for one in ends])
            start = max(arrival, free_at[gpu])
            free_at[gpu] = start + duration
            ends[gpu].append(free_at[gpu])
            yield Run(arrival, start, free_at[gpu])

    return serve


def round_robin(number, counts):
    """One after the other."""
    return number % GPUS


def least_connections(number, counts):
    """The one with the fewest jobs."""
    return counts.index(min(counts))


def at_random(number, counts):
    """Any; the same for every load."""
    return random.Random(SEED + number).randrange(GPUS)


# one line for all


class Prefetching:
    """Plain Celery: a worker takes up to so many messages that are not acknowledged yet, whoever idles.

    Acknowledged early, as Celery does it, the one that runs counts no more, and another waits behind it.
    """

    def __init__(self, prefetch, *, acks_late):
        self._prefetch, self._acks_late = prefetch, acks_late
        self._shared, self._own = deque(), [deque() for _ in range(GPUS)]
        self._asking = deque(range(GPUS))  # the server serves who has asked for longest
        self._is_running = [False] * GPUS
        self._events, self.runs = [], []

    def serve(self, arrivals):
        """All of them."""
        self._events = [(arrival, next(_ORDER), None, duration) for arrival, duration in arrivals]
        while self._events:
            now, _, gpu, duration = heapq.heappop(self._events)
            if gpu is None:
                self._shared.append((now, duration))
            else:
                self._is_running[gpu] = False
                self._go_on(gpu, now)
            while self._shared and self._asking:
                taker = self._asking.popleft()
                self._own[taker].append(self._shared.popleft())
                self._go_on(taker, now)
        return self.runs

    def _go_on(self, gpu, now):
        own = self._own[gpu]
        if own and not self._is_running[gpu]:
            arrival, duration = own.popleft()
            self._is_running[gpu] = True
            self.runs.append(Run(arrival, now, now + duration))
            heapq.heappush(self._events, (now + duration, next(_ORDER), gpu, 0.0))
        unacknowledged = len(own) + (self._acks_late and self._is_running[gpu])
        if unacknowledged < self._prefetch and gpu not in self._asking:
            self._asking.append(gpu)


def prefetching(prefetch, *, acks_late=False):
    """A policy of plain Celery's."""
    return lambda arrivals: Prefetching(prefetch, acks_late=acks_late).serve(arrivals)


def optimum(arrivals):
    """M/G/k: whoever came first gets the first GPU that is free, and nothing takes any time."""
    free_at = [0.0] * GPUS
    for arrival, duration in arrivals:
        start = max(arrival, heapq.heappop(free_at))
        heapq.heappush(free_at, start + duration)
        yield Run(arrival, start, start + duration)


class Ours:
    """A sender, and workers that run for as long as the virtual clock says."""

    def __init__(self, fleet):
        self._fleet, self._held = fleet, {}
        self._events, self.runs = [], []
        fleet.join(GPUS)

    def serve(self, arrivals):
        """All of them."""
        self._events = [(arrival, next(_ORDER), None, duration) for arrival, duration in arrivals]
        while self._events:
            now, _, claim, duration = heapq.heappop(self._events)
            if claim is None:
                self._hold(now, duration)
            else:
                self._fleet.ledger.release(claim)
                self._run_next(claim.gpu, now)
        return self.runs

    def _hold(self, now, duration):
        held = self._fleet.held(POOL)
        self._held[held.ticket] = now, duration
        if self._fleet.ledger.hold(held) == "claimed":
            self._run_next(self._fleet.client.hget(self._fleet.key("ticket", held.ticket), "gpu"), now)

    def _run_next(self, gpu, now):
        if claim := self._fleet.pop(gpu):
            arrival, duration = self._held.pop(self._fleet.start(claim).ticket)
            self.runs.append(Run(arrival, now, now + duration))
            heapq.heappush(self._events, (now + duration, next(_ORDER), claim, 0.0))


def ours(arrivals):
    """The ledger's scripts."""
    with usual_server() as one:
        fleet = Fleet(one.url)
        runs = Ours(fleet).serve(arrivals)
        fleet.close()
    return runs


POLICIES = {
    "round robin": by_choice(round_robin),
    "random": by_choice(at_random),
    "least connections": by_choice(least_connections),
    "Celery, prefetch 4 (its default)": prefetching(4),
    "Celery, prefetch 1": prefetching(1),
    "Celery, prefetch 1, acks_late": prefetching(1, acks_late=True),
    "celery_gpulease": ours,
    "optimum of one line (M/G/8)": optimum,
}
