"""How soon a job runs again whose worker is gone: from `kill -9` to the second start of its body."""

import os
import random
import signal
import statistics
import time
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock

from tests.benchmarks.lab import lab, ours, plain, rabbitmq
from tests.benchmarks.table import Table
from tests.waiting import wait_until

#: Longer than any round, which its own worker never ends.
JOB_SECONDS = 900
#: Deadline of a round, of which no figure depends.
LONGEST = 300.0
#: Rounds wait at the same time, and begin one after the other: two cores start no dozen workers at once.
BEGINNING = Lock()
CASES = ("same host, restarted at once", "same host, another worker", "host gone")


@dataclass(frozen=True)
class Pace:
    """What the waits depend on, in seconds; as it comes, but for the visibility timeout, an hour by default."""

    visibility: int = 10
    ttl: int = 30
    conf: tuple = ()

    def setups(self, rabbit):
        """Plain Celery on both brokers, and ours."""
        conf = dict(self.conf)
        options = {"broker_transport_options": {"visibility_timeout": self.visibility}}
        on_redis = plain(
            f"plain Celery on Redis, `visibility_timeout` {self.visibility} s (default 3600)", conf=options
        )
        leased = ours(f"celery_gpulease, `gpulease_lease_ttl` {self.ttl} s", conf={"gpulease_lease_ttl": self.ttl})
        return [on_redis, plain("plain Celery on RabbitMQ", broker=rabbit, conf=conf), leased][:: 1 if rabbit else 2]


AS_IT_COMES = Pace()
HASTY = Pace(ttl=3, conf=(("broker_heartbeat", 2),))


def measure(quick):
    """One table: the median and the worst of each case."""
    pace, rounds, waiting = (HASTY, 1, 1) if quick else (AS_IT_COMES, 5, 3)
    found = defaultdict(list)
    with rabbitmq() as rabbit:
        setups = pace.setups(rabbit)
        quickly = [(setup, case) for setup in setups[1:] for case in CASES[:2]]
        for setup, case in quickly * rounds:
            found[setup.name, case].append(_round(setup, case, pace))
        slowly = [(setup, case) for setup in setups for case in CASES if (setup, case) not in quickly] * waiting
        if quick:  # a living worker of plain Celery looks for what it may restore every 100 s
            slowly = [(setup, case) for setup, case in slowly if setup is not setups[0]]
        # what waits for a clock disturbs nobody
        with ThreadPoolExecutor(len(slowly)) as at_once:
            seconds = at_once.map(lambda one: _round(*one, pace), slowly)
            for (setup, case), took in zip(slowly, seconds, strict=True):
                found[setup.name, case].append(took)
    lines = [(setup.name, *(_text(found[setup.name, case]) for case in CASES)) for setup in setups]
    return [Table("From `kill -9` of a worker to the second start of its job: median (worst)", ("", *CASES), lines)]


def _text(rounds):
    if not rounds:
        return "not waited for"
    return f"{statistics.median(rounds):.1f} s ({max(rounds):.1f} s)"


def _round(setup, case, pace):
    own = uuid.uuid4().hex  # RabbitMQ keeps the last round's job, and for a while the queue that its dead worker had
    conf, command = {**setup.conf, "task_default_queue": own}, setup.command.replace("@bench", f"@{own}")
    with lab(replace(setup, conf=conf, command=command), workers=0) as one:
        hosts = ("bench", "elsewhere" if case == CASES[2] else "bench")
        numbers = range(1 if case == CASES[0] else 2)
        with BEGINNING:
            workers = [one.workers([number], GPULEASE_HOST=hosts[number])[0] for number in numbers]
        one.send(f"mark.delay({JOB_SECONDS})\nprint(1)")
        first = _mark(one, 0)
        # where the clock decides, at any moment between two heartbeats
        time.sleep(random.uniform(0.5, pace.ttl / 3 if case == CASES[2] else 1))
        victim = workers[int(first[0].partition("@")[0][-1])]
        began = time.monotonic()
        _silence(victim) if case == CASES[2] else victim.kill()
        with ThreadPoolExecutor(1) as supervisor:
            restarted = supervisor.submit(one.workers, [0] if case == CASES[0] else [])
            at = _mark(one, 1)[1]
            restarted.result()
        return at - began


def _mark(one, number):
    """Who has begun the job for this time, and when."""
    told = wait_until(lambda: one.client.lindex("marks", number), LONGEST, "a start")
    who, at = told.split()
    return who, float(at)


def _silence(process):
    """Its host is gone: it says nothing any more, not even that its connections are closed."""
    for pid in (process.pid, *process.children()):
        os.kill(pid, signal.SIGSTOP)
