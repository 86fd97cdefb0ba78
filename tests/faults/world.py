"""One test's world: a server, real workers, a sender in this process, and the journal that the tasks write."""

import json
import os
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis
from celery import Celery
from celery.result import AsyncResult

from celery_gpulease import GPULease
from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.ledger.checks import inconsistencies
from tests.clock import Clock
from tests.processes import Process, Processes
from tests.proxy import Proxy
from tests.rabbitmq import RabbitMQ
from tests.sentinel import Sentinels
from tests.waiting import wait_until

PROJECT = Path(__file__).parent / "project"
HOST = "node7"
TTL, HEARTBEAT = 3.0, 1.0
#: Deadlines of tests, not promises: a slow machine may take long.
SOON, LONG = 20.0, 60.0

CONF = {
    "gpulease_lease_ttl": TTL,
    "gpulease_heartbeat_interval": HEARTBEAT,
    "gpulease_reconcile_interval": 2.0,
    "broker_connection_retry_on_startup": True,
}


@dataclass
class Run:
    """One run of one task, from the journal; `end` is None for one that never ended."""

    task: str
    gpu: str
    fence: int
    pid: int
    start: float
    facts: dict
    end: float | None = None
    how: str | None = None


@dataclass
class World:
    """What a test does with its workers and tasks.

    `server` is there where it is this test's alone, `proxy` where workers and sender reach it through one, `rabbitmq`
    where that is the broker, `sentinels` where they ask these for it, `clock` where the server has one of its own.
    """

    url: str
    folder: Path
    processes: Processes
    conf: dict
    server: EmbeddedServer | None = None
    proxy: Proxy | None = None
    rabbitmq: RabbitMQ | None = None
    sentinels: Sentinels | None = None
    clock: Clock | None = None
    sent: list[str] = field(default_factory=list)

    def __post_init__(self):
        # past the proxy: what a test looks at is never broken
        self.client = redis.Redis.from_url(self.server.url if self.server else self.url, decode_responses=True)
        self.app = Celery("proj", broker=self.url, backend=self.url, set_as_current=False)
        self.app.conf.update(self.conf)
        # kombu shares connections by what it knows of them: one that another test has cut is none of ours
        self.app.conf.broker_transport_options = {**self.app.conf.broker_transport_options, "world": str(self.folder)}
        self.ledger = GPULease(self.app).ledger

    def worker(self, gpu: int | str, *options: str, **env: str) -> Process:
        """`celery worker --gpu`, ready and known by the ledger as alive."""
        process = self.processes.worker("proj", gpu, *options, **env)
        here = self.ledger.keys.here(f"{env.get('GPULEASE_HOST', HOST)}:{gpu}")
        wait_until(lambda: self.ledger.client.pubsub_numsub(here)[0][1], SOON, "a listener")
        return process

    def beat(self) -> Process:
        """`celery beat`, which has asked for its first reconciliation."""
        schedule = str(self.folder / "beat.db")
        options = ("-l", "info", "--max-interval", "1", "--pidfile", "", "-s", schedule)
        process = self.processes.start("celery", "-A", "proj", "beat", *options, name="beat")
        process.wait_for_log("Sending due task")
        return process

    def send(self, name: str, *args: object, pool: str = "default", **options: object) -> str:
        """Sends a task of the project by its name, as a process that has none of its code; its id."""
        task = self.app.send_task(f"proj.{name}", args, pool=pool, **options).id
        self.sent.append(task)
        return task

    def open(self, gate: str) -> None:
        """Lets the tasks that wait for this gate go on."""
        (self.folder / gate).touch()

    def journal(self) -> list[dict]:
        """Its lines."""
        path = self.folder / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def runs(self, task: str | None = None) -> list[Run]:
        """All runs, or those of one task, by their start."""
        found: dict[str, Run] = {}
        for line in self.journal():
            if line["what"] == "start":
                run = Run(line["task"], line["gpu"], line["fence"], line["pid"], line["at"], line)
                found[line["run"]] = run
            elif line["what"] == "end":
                found[line["run"]].end, found[line["run"]].how = line["at"], line["how"]
        return [run for run in found.values() if task in (None, run.task)]

    def started(self, task: str, number: int = 1, seconds: float = SOON) -> Run:
        """This run of the task, once it has begun."""

        def begun():
            runs = self.runs(task)
            return runs[number - 1] if len(runs) >= number else None

        return self.wait(begun, seconds, task)

    def wait(self, probe, seconds: float, task: str):
        """Waits until the probe answers; else tells the task's story as it is then."""
        try:
            return wait_until(probe, seconds, "a task")
        except AssertionError:
            closed = {key: self.client.hgetall(key) for key in self.client.scan_iter("gpu:closed:*")}
            told = f"{self.story(task)}\n{sorted(self.client.scan_iter('gpu:*'))} {closed}\n{self.processes.tell()}"
            raise AssertionError(f"Waited {seconds:g} s in vain: {told}") from None

    def state(self, task: str) -> str:
        """Its state in the result backend."""
        return AsyncResult(task, app=self.app).state

    def succeeds(self, *tasks: str, seconds: float = LONG) -> None:
        """Waits until all have ended, in SUCCESS."""
        for task in tasks:
            self.ends(task, "SUCCESS", seconds)

    def ends(self, task: str, state: str, seconds: float = LONG) -> object:
        """Waits until the task has this end; its result."""
        ready = ("SUCCESS", "FAILURE", "REVOKED")
        self.wait(lambda: self.state(task) in ready, seconds, task)
        found = self.state(task)
        assert found == state, self.story(task)
        return AsyncResult(task, app=self.app).result

    def story(self, task: str) -> str:
        """What is known of a task, for a test's message."""
        entries = [fields for _, fields in self.client.xrange("gpu:journal") if fields["task_id"] == task]
        told = ", ".join(f"{one['what']} {one['gpu']} {one['detail']}".strip() for one in entries)
        result = AsyncResult(task, app=self.app)
        return f"{task} is {result.state} {result.result!r}; {told}; {self.runs(task)}"

    def lease(self, gpu: int) -> str | None:
        """The lease of a GPU."""
        return self.client.get(self.ledger.keys.lease(f"{HOST}:{gpu}"))

    def until_free(self, gpu: int) -> None:
        """Waits until the next task is claimed for this GPU: a worker is ready a moment before, and after a run."""
        wait_until(
            lambda: [free for free in self.client.keys("gpu:free:*") if self.client.zscore(free, f"{HOST}:{gpu}")],
            SOON,
            f"GPU {gpu} to be free",
        )

    def take(self, gpu: int, seconds: float = 60) -> None:
        """Reserves a GPU as any other program may."""
        key = self.ledger.keys.lease(f"{HOST}:{gpu}")
        wait_until(
            lambda: self.client.set(key, "stranger", nx=True, px=int(seconds * 1000)), SOON, f"GPU {gpu} to be free"
        )

    def give(self, gpu: int) -> None:
        """Gives it back."""
        self.client.delete(self.ledger.keys.lease(f"{HOST}:{gpu}"))

    def gpulease(self, *arguments: str) -> Process:
        """`celery -A proj gpulease …`, at its end; once more where a worker reconciles at that moment."""
        process = self.processes.start("celery", "-A", "proj", "gpulease", *arguments, name="gpulease")
        process.wait()
        return self.gpulease(*arguments) if "another process reconciles" in process.log else process

    def row(self, gpu: int) -> dict:
        """A GPU as `status --json` shows it."""
        rows = json.loads(self.gpulease("status", "--json").output)["gpus"]
        return next(row for row in rows if row["id"] == f"{HOST}:{gpu}")

    def rest(self) -> None:
        """Everything sent has ended; nothing overlapped, nothing is left, and the ledger is consistent."""
        for task in self.sent:
            self.wait(lambda task=task: self.state(task) in ("SUCCESS", "FAILURE", "REVOKED"), LONG, task)
        assert overlaps(self.runs()) == []
        wait_until(lambda: not self.client.keys("gpu:lease:*"), SOON, "all leases to go")
        wait_until(lambda: not self.client.keys("gpu:ticket:*"), SOON, "all tickets to end")
        wait_until(lambda: not inconsistencies(self.ledger), SOON, "a consistent ledger")

    def close(self) -> None:
        """Ends its connections."""
        self.client.close()
        self.ledger.client.close()
        self.app.pool.force_close_all()
        self.app.close()


def overlaps(runs: list[Run]) -> list[tuple[Run, Run]]:
    """Pairs of runs that were on one GPU at one time, or whose fences did not grow."""
    bad, last = [], {}
    for run in sorted(runs, key=lambda one: one.start):
        before = last.get(run.gpu)
        if before and ((before.end or before.start) > run.start or before.fence >= run.fence):
            bad.append((before, run))
        last[run.gpu] = run
    return bad


def stored_state(url: str, task: str) -> str | None:
    """A task's state in the result backend at this Redis, None where nothing is stored."""
    with redis.Redis.from_url(url) as client:
        found = client.get(f"celery-task-meta-{task}")
    return json.loads(found)["status"] if found else None


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Sends a signal to one process."""
    os.kill(pid, number)


@contextmanager
def frozen(process: Process):
    """A worker whose processes are all stopped for a while."""
    pids = [process.pid, *process.children()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def now() -> float:
    """The clock of the journal."""
    return time.time()
