"""`make bench`: gap between two jobs, and the cost of sending, as ratios to plain Celery in the same run.

QUICK=1 does one short round of each.
"""

import json
import os
import statistics
from itertools import groupby, pairwise

from tests.benchmarks.lab import lab

QUICK = bool(os.environ.get("QUICK"))
ROUNDS = 1 if QUICK else 5
JOBS = 40 if QUICK else 200
SENDS = 100 if QUICK else 1000
VARIANTS = ("plain", "gpulease")

GAP = f"""
[one.get(timeout=60) for one in [work.delay(0.01) for _ in range(8)]]
results = [work.delay(0.05) for _ in range({JOBS})]
print(json.dumps([one.get(timeout=120) for one in results]))
"""

SEND = f"""
[nothing.delay() for _ in range(20)]
took = []
for _ in range({SENDS}):
    began = time.perf_counter()
    nothing.delay()
    took.append(time.perf_counter() - began)
print(json.dumps(took))
"""


def gaps(runs):
    """Seconds between the end of one job and the start of the next on the same worker."""
    found = []
    for _, one in groupby(sorted(runs), key=lambda run: run[0]):
        jobs = sorted(one, key=lambda run: run[1])
        found += [later[1] - earlier[2] for earlier, later in pairwise(jobs)]
    return found


def show(title, figures):
    """Prints median and p99 of each variant, and their ratio to plain Celery's."""
    print(f"\n{title}")
    base = None
    for variant in VARIANTS:
        rounds = figures[variant]
        median = statistics.median(statistics.median(one) for one in rounds)
        p99 = statistics.median(sorted(one)[int(len(one) * 0.99) - 1] for one in rounds)
        base = base or (median, p99)
        print(
            f"  {variant:10} median {median * 1000:8.3f} ms  p99 {p99 * 1000:8.3f} ms"
            f"   x{median / base[0]:.2f}  x{p99 / base[1]:.2f}   ({len(rounds)} rounds)",
            flush=True,
        )


def main():
    """Alternates the variants, round after round."""
    gap, busy, free = ({variant: [] for variant in VARIANTS} for _ in range(3))
    for _ in range(ROUNDS):
        for variant in VARIANTS:
            with lab(variant) as send:
                gap[variant].append(gaps(json.loads(send(GAP))))
                free[variant].append(json.loads(send(SEND)))
            with lab(variant, workers=0) as send:
                busy[variant].append(json.loads(send(SEND)))
    show(f"Gap between two jobs on one GPU (4 workers, {JOBS} jobs of 50 ms)", gap)
    show("delay() of one task, workers at work", free)
    show("delay() of one task, nobody serves", busy)


if __name__ == "__main__":
    main()
