"""A server, workers and senders for one round."""

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from celery_gpulease.embedded import EmbeddedServer
from tests.benchmarks.machine import usual_server
from tests.processes import Process, Processes
from tests.rabbitmq import RabbitMQ, is_installed
from tests.waiting import wait_until

WORKERS = 4
HERE = Path(__file__).resolve().parent
HOST = "bench"
#: Deadlines, of which no figure depends.
READY_SECONDS, CODE_SECONDS = 120.0, 300.0


@dataclass(frozen=True)
class Setup:
    """One way to run jobs: a line of a table.

    Attributes:
        name: As the table has it.
        module: The project's, beside this file; its sender's code begins with all of its names.
        ready: What its worker logs when it takes jobs.
        command: Its worker's, in which {n} is the worker's number and {url} the Redis of this round.
        broker: RabbitMQ's URL; empty where the broker is Redis.
        conf: Settings of the app beside the project's own.
    """

    name: str
    module: str
    ready: str
    command: str
    broker: str = ""
    conf: dict = field(default_factory=dict)


def plain(name="plain Celery", pool="prefork", **options):
    """Plain Celery as people set it up for GPUs: one shared queue, one job at a time, acknowledged late."""
    return Setup(name, "plain", " ready.", f"celery -A plain worker -l info -P {pool} -c 1 -n w{{n}}@bench", **options)


def ours(name="celery_gpulease", pool="prefork", **options):
    """The same tasks, each under its lease."""
    return Setup(name, "leased", " ready.", f"celery -A leased worker -l info -P {pool} --gpu {{n}}", **options)


@dataclass
class Lab:
    """One round's server, and what runs beside it."""

    setup: Setup
    server: EmbeddedServer
    processes: Processes

    def __post_init__(self):
        self.client = redis.Redis.from_url(self.server.url, decode_responses=True)

    def workers(self, numbers, **env):
        """Starts these workers at the same time; all are ready."""
        command = self.setup.command.replace("{url}", self.server.url)
        started = [
            self.processes.start(*command.replace("{n}", str(number)).split(), name=f"w{number}", **env)
            for number in numbers
        ]
        for process, number in zip(started, numbers, strict=True):
            wait_until(lambda one=process: self.setup.ready in one.log + one.output, READY_SECONDS, repr(process))
            if self.setup.module == "leased":
                self._until_listening(f"gpu:here:{env.get('GPULEASE_HOST', HOST)}:{number}")
        return started

    def send(self, code):
        """Runs code in a sender's process; what it prints, as JSON."""
        text = f"from {self.setup.module} import *\nimport json, time\n{code}"
        return json.loads(self.processes.run("python", "-c", text, seconds=CODE_SECONDS).output)

    def start_sending(self, code) -> Process:
        """The same, without waiting for its end."""
        return self.processes.start("python", "-c", f"from {self.setup.module} import *\nimport time\n{code}")

    def _until_listening(self, channel):
        wait_until(lambda: self.client.pubsub_numsub(channel)[0][1], READY_SECONDS, f"a listener on {channel}")


@contextmanager
def lab(setup, workers=WORKERS):
    """A round with so many workers, each on a GPU of its own; nothing is left of it."""
    with usual_server() as server, TemporaryDirectory(prefix="bench-") as folder:
        env = {
            "BENCH_URL": server.url,
            "BENCH_BROKER": setup.broker or server.url,
            "BENCH_CONF": json.dumps(setup.conf),
            "GPULEASE_HOST": HOST,
            "PYTHONUNBUFFERED": "1",  # RQ says on its standard output that it is ready
        }
        with Processes(Path(folder), HERE, env) as processes:
            one = Lab(setup, server, processes)
            try:
                one.workers(range(workers))
                yield one
            finally:
                one.client.close()


@contextmanager
def rabbitmq():
    """The URL of a RabbitMQ of one's own; None where it is not installed."""
    if not is_installed():
        yield None
        return
    with TemporaryDirectory(prefix="bench-") as folder, RabbitMQ(Path(folder)) as node:
        yield node.url


def alternate(setups, rounds, measure):
    """Measures each setup in turn, round after round: setup's name → what was measured in each."""
    found = {setup.name: [] for setup in setups}
    for _ in range(rounds):
        for setup in setups:
            found[setup.name].append(measure(setup))
    return found
