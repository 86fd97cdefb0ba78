"""Heavy-tailed jobs, the same for every policy, and what became of them."""

import itertools
import random
from dataclasses import dataclass

from tests.benchmarks.table import Table, percentile

SEED = 2026
LOADS = (0.5, 0.7, 0.9)
#: Of the log-normal: the standard deviation is five times the mean.
SIGMA = 1.8
#: Of the other: this part of all jobs lasts for so many times the mean of the rest.
LONG_PART, LONG_TIMES = 0.05, 20.0


@dataclass(frozen=True)
class Run:
    """One job's: seconds on one clock."""

    arrival: float
    start: float
    end: float


@dataclass(frozen=True)
class Verdict:
    """What a policy made of them: seconds; and the part of all GPU time that idled while a job waited for it."""

    mean_wait: float
    p99_wait: float
    idle_part: float


def log_normal(chance):
    """A duration, of mean 1 before long."""
    return chance.lognormvariate(-(SIGMA**2) / 2, SIGMA)


def few_long(chance):
    """Most are short."""
    return LONG_TIMES if chance.random() < LONG_PART else chance.uniform(0.5, 1.5)


DISTRIBUTIONS = {f"log-normal, sigma {SIGMA:g}": log_normal, f"5 % last {LONG_TIMES:g} × the rest": few_long}


def jobs(duration, number, load, gpus, mean):
    """Arrivals and durations in seconds, by the same chances for every load; mean and load are exact."""
    chance = random.Random(SEED)
    lasting = [duration(chance) for _ in range(number)]
    scale = mean * number / sum(lasting)
    gaps = [chance.expovariate(1.0) for _ in range(number)]
    pace = mean / (load * gpus) * number / sum(gaps)
    return list(zip(itertools.accumulate(gap * pace for gap in gaps), (one * scale for one in lasting), strict=True))


def judge(runs, gpus, warm_up=0):
    """Mean and p99 wait, not of the first, who found an empty line; GPU time that idled while somebody waited."""
    waits = [run.start - run.arrival for run in sorted(runs, key=lambda run: run.arrival)[warm_up:]]
    whole = gpus * (max(run.end for run in runs) - min(run.arrival for run in runs))
    return Verdict(sum(waits) / len(waits), percentile(waits, 0.99), _idle_while_waiting(runs, gpus) / whole)


def _idle_while_waiting(runs, gpus):
    """GPU seconds, at each moment of as many GPUs as idle, and at most of as many as jobs wait."""
    changes = [(run.arrival, 1, 0) for run in runs]
    changes += [(run.start, -1, 1) for run in runs] + [(run.end, 0, -1) for run in runs]
    waiting = busy = 0
    lost, before = 0.0, 0.0
    for moment, waits, runs_more in sorted(changes):
        lost += (moment - before) * max(0, min(gpus - busy, waiting))
        waiting, busy, before = waiting + waits, busy + runs_more, moment
    return lost


def table(title, found, policies, unit, seconds):
    """Each policy's waits at each load.

    Args:
        title: What was measured.
        found: (policy, load) → its verdict.
        policies: In their order.
        unit: In which waits are printed.
        seconds: How many it has.
    """
    loads = [load for load in LOADS if (policies[0], load) in found]
    columns = ("", *(f"{what}, load {load}" for load in loads for what in ("mean", "p99", "idle")))
    lines = []
    for policy in policies:
        cells = []
        for one in (found[policy, load] for load in loads):
            waits = [f"{_digits(wait / seconds)} {unit}" for wait in (one.mean_wait, one.p99_wait)]
            cells += [*waits, f"{one.idle_part:.1%}"]
        lines.append((policy, *cells))
    return Table(f"{title}; idle: GPU time while a job waited that could have had it", columns, lines)


def _digits(number):
    return f"{number:.0f}" if number >= 100 else f"{number:.2g}"
