"""What a sender waits for: one `delay()`, and a group of many, GPU tasks beside plain ones."""

from functools import partial

from tests.benchmarks.lab import WORKERS, alternate, lab, ours, plain
from tests.benchmarks.table import Table, beside

#: Longer than any round.
BUSY_SECONDS = 600

FREE = """
[work.delay(0).get(timeout=60) for _ in range(20)]
took = []
for _ in range({sends}):
    began = time.perf_counter()
    sent = work.delay(0)
    took.append(time.perf_counter() - began)
    sent.get(timeout=60)
print(json.dumps(took))
"""

TIMED = """
[nothing.delay() for _ in range(20)]
took = []
for _ in range({sends}):
    began = time.perf_counter()
    nothing.delay()
    took.append(time.perf_counter() - began)
print(json.dumps(took))
"""

# Each write of redis-py's is one round trip, whether of one command or of many.
GROUP = """
from celery import group
from redis.connection import AbstractConnection

group([nothing.si() for _ in range(20)]).apply_async()
trips, send = [], AbstractConnection.send_packed_command
AbstractConnection.send_packed_command = lambda self, command, *how, **options: (
    trips.append(command), send(self, command, *how, **options))
many = group([nothing.si() for _ in range({sends})])
began = time.perf_counter()
many.apply_async()
print(json.dumps([time.perf_counter() - began, len(trips)]))
"""


def measure(quick):
    """`delay()` with all GPUs free, all busy and none served; then a group, with all busy."""
    sends, rounds = (100, 1) if quick else (1000, 5)
    setups = (plain("plain task"), ours("GPU task"))
    tables = []
    for where, one_round in (
        ("all GPUs free: one at a time", partial(_free, sends=sends // 5)),
        ("all GPUs busy", partial(_busy, code=TIMED.format(sends=sends))),
        ("nobody serves", partial(_unserved, code=TIMED.format(sends=sends))),
    ):
        tables.append(beside(f"`delay()` of one task, {where}", alternate(setups, rounds, one_round)))
    groups = alternate(setups, rounds, partial(_busy, code=GROUP.format(sends=1000)))
    seconds = {who: [[took] for took, _ in found] for who, found in groups.items()}
    title = "A group of 1000, all GPUs busy: time until all are sent"
    return [*tables, with_column(beside(title, seconds), "round trips to Redis", groups)]


def with_column(table, name, groups):
    """The table, and beside each line how many round trips its last round made."""
    lines = [(*line, str(groups[line[0]][-1][1])) for line in table.lines]
    return Table(table.title, (*table.columns, name), lines)


def _free(setup, sends):
    with lab(setup) as one:
        return one.send(FREE.format(sends=sends))


def _unserved(setup, code):
    with lab(setup, workers=0) as one:
        return one.send(code)


def _busy(setup, code):
    with lab(setup) as one:
        one.send(_occupy())
        return one.send(code)


def _occupy():
    return f"""
[mark.delay({BUSY_SECONDS}) for _ in range({WORKERS})]
while mark.backend.client.llen("marks") < {WORKERS}:
    time.sleep(0.01)
print("true")
"""
