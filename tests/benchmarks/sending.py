"""What a sender waits for: one `delay()`, and a group of many, GPU tasks beside plain ones."""

from functools import partial

from tests.benchmarks.lab import WORKERS, alternate, lab, ours, plain
from tests.benchmarks.table import beside

GROUP_SIZE = 1000
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

# A round trip is an answer that is read after something was written; Celery waits for no answer to its subscriptions.
GROUP = """
from celery import group
from redis.connection import AbstractConnection

group([nothing.si() for _ in range(20)]).apply_async()
trips, asked = [], set()
send, read = AbstractConnection.send_packed_command, AbstractConnection.read_response
def count_send(self, *how, **options):
    asked.add(self)
    return send(self, *how, **options)
def count_read(self, *how, **options):
    if self in asked:
        asked.remove(self)
        trips.append(self)
    return read(self, *how, **options)
AbstractConnection.send_packed_command, AbstractConnection.read_response = count_send, count_read
many = group([nothing.si() for _ in range({sends})])
began = time.perf_counter()
sent = many.apply_async()
took = time.perf_counter() - began
print(json.dumps([took, len(trips)]))
"""


OCCUPY = f"""
[mark.delay({BUSY_SECONDS}) for _ in range({WORKERS})]
while mark.backend.client.llen("marks") < {WORKERS}:
    time.sleep(0.01)
print("true")
"""


def measure(quick):
    """`delay()` with all GPUs free, all busy and none served; then a group, with all busy."""
    sends, rounds = (100, 1) if quick else (1000, 5)
    setups = (plain("plain task"), ours("GPU task"))
    found = alternate(setups, rounds, partial(_round, sends=sends))
    tables = [
        beside(
            f"`delay()` of one task, {where}", {who: [one[where] for one in of_one] for who, of_one in found.items()}
        )
        for where in ("all GPUs free: one at a time", "all GPUs busy", "nobody serves")
    ]
    groups = {who: [one["group"] for one in of_one] for who, of_one in found.items()}
    title = f"A group of {GROUP_SIZE}, all GPUs busy: time until all are sent"
    table = beside(title, {who: [[seconds] for seconds, _ in of_one] for who, of_one in groups.items()})
    return [*tables, table.with_column("round trips", {who: str(of_one[-1][1]) for who, of_one in groups.items()})]


def _round(setup, sends):
    with lab(setup) as one:
        found = {"all GPUs free: one at a time": one.send(FREE.format(sends=sends // 5))}
        one.send(OCCUPY)
        found["all GPUs busy"] = one.send(TIMED.format(sends=sends))
        found["group"] = one.send(GROUP.format(sends=GROUP_SIZE))
    with lab(setup, workers=0) as one:
        found["nobody serves"] = one.send(TIMED.format(sends=sends))
    return found
