"""How soon a job starts where all GPUs are free: from `delay()` to the first line of its body."""

from dataclasses import replace

from tests.benchmarks.lab import alternate, lab, ours, plain, rabbitmq
from tests.benchmarks.table import beside

# A moment between two, in which the workers come to rest.
ONE_BY_ONE = """
[work.delay(0).get(timeout=60) for _ in range(20)]
took = []
for _ in range({sends}):
    time.sleep(0.03)
    began = time.monotonic()
    took.append(work.delay(0).get(timeout=60)[1] - began)
print(json.dumps(took))
"""


def measure(quick):
    """Each pool on Redis, and prefork on RabbitMQ, where that is installed; quickly, prefork on Redis."""
    sends, rounds = (50, 1) if quick else (100, 3)

    def table(where, setups):
        title = f"`delay()` until the body starts, all 4 GPUs free, {where}"
        return beside(title, alternate(setups, rounds, lambda setup: _round(setup, sends)))

    if quick:
        return [table("prefork, Redis", (plain(), ours()))]
    pools = ("prefork", "solo", "threads")
    tables = [table(f"{pool}, Redis", (plain(pool=pool), ours(pool=pool))) for pool in pools]
    with rabbitmq() as url:
        if url:
            tables.append(table("prefork, RabbitMQ", [replace(setup, broker=url) for setup in (plain(), ours())]))
    return tables


def _round(setup, sends):
    with lab(setup) as one:
        return one.send(ONE_BY_ONE.format(sends=sends))
