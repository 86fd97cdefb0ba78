"""The project under test: tasks that write down every run in a journal on disk."""

import builtins
import ctypes
import json
import logging
import os
import resource
import signal
import subprocess
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import redis
from celery import Celery, signals
from celery.worker.request import Request
from dying import DyingTask

from celery_gpulease import GPULease, GPUTask

if seconds := float(os.environ.get("TEST_SLOW_INIT", "0")):  # as a project that imports torch in its children

    @signals.worker_process_init.connect(weak=False)
    def slow_init(**_):
        """Keeps the child from its first task for a while."""
        time.sleep(seconds)


if gate := os.environ.get("TEST_RECEIVED_GATE"):  # main is stuck before START, its threads are not

    @signals.task_received.connect(weak=False)
    def wait_for_gate(**_):
        """Keeps the event loop until a file of this name is there."""
        while not (JOURNAL.parent / gate).exists():
            time.sleep(0.01)


if name := os.environ.get("TEST_FACTS"):  # as whoever reads logs by a program

    class FactsFormatter(logging.Formatter):
        """The `extra` of a line as JSON."""

        def format(self, record):
            """A line's level and message, with the facts."""
            told = {name: getattr(record, name) for name in ("task_id", "gpu", "pool", "token")}
            return json.dumps({"level": record.levelname, "message": record.getMessage(), **told})

    @signals.after_setup_logger.connect(weak=False)
    def add_facts(logger, **_):
        """Writes the lines that have facts into a file of this name."""
        handler = logging.FileHandler(JOURNAL.parent / name)
        handler.setFormatter(FactsFormatter())
        handler.addFilter(lambda record: hasattr(record, "gpu"))
        logger.addHandler(handler)


JOURNAL = Path(os.environ["TEST_JOURNAL"])
URL = os.environ["TEST_URL"]

app = Celery("proj", broker=URL)
app.conf.update({"result_backend": URL, **json.loads(os.environ["TEST_CONF"])})
GPULease(app)


def note(**line):
    """One line at the end of the journal, in one write, whoever else writes."""
    fd = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, (json.dumps({"at": time.time(), **line}) + "\n").encode())
    finally:
        os.close(fd)


@contextmanager
def run_of(task):
    """Notes one run's start and end."""
    run, request = uuid.uuid4().hex, task.request
    note(
        what="start", run=run, task=request.id, gpu=task.gpu.id, index=task.gpu.index, fence=task.lease.fence,
        pid=os.getpid(), retries=request.retries, eta=request.eta, visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        order=os.environ.get("CUDA_DEVICE_ORDER"), headers=sorted(request.headers or {}),
    )  # fmt: skip
    try:
        yield
    except BaseException as error:
        note(what="end", run=run, how=type(error).__name__)
        raise
    note(what="end", run=run, how="ok")


@app.task(base=GPUTask, bind=True)
def add(self, x, y):
    """Ends at once."""
    with run_of(self):
        return x + y


@app.task(base=GPUTask, bind=True)
def wait_for(self, gate):
    """Runs until a file of this name is in the journal's folder."""
    with run_of(self):
        path = JOURNAL.parent / gate
        while not path.exists():
            time.sleep(0.01)
    return gate


@app.task(base=GPUTask, bind=True, acks_late=False)
def wait_for_once(self, gate):
    """The same; it may not run twice."""
    with run_of(self):
        path = JOURNAL.parent / gate
        while not path.exists():
            time.sleep(0.01)
    return gate


@app.task(base=GPUTask, bind=True)
def fail(self):
    """Raises."""
    with run_of(self):
        raise ValueError("no")


@app.task(base=GPUTask, bind=True, ignore_result=True)
def ignore(self):
    """Stores nothing."""
    with run_of(self):
        return 1


@app.task(base=GPUTask, bind=True, max_retries=3)
def retry_once(self, countdown):
    """Fails at first."""
    with run_of(self):
        if not self.request.retries:
            raise self.retry(countdown=countdown)
        return self.request.retries


@app.task(base=GPUTask, bind=True)
def replace_by_add(self, x):
    """Another task takes its place."""
    with run_of(self):
        raise self.replace(add.s(x, 1))


@app.task(base=GPUTask, bind=True)
def die(self):
    """Ends the process that runs it."""
    with run_of(self):
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(base=GPUTask, bind=True)
def leave(self, code):
    """As `die`, by the C library's way out."""
    with run_of(self):
        os._exit(code)


@app.task(base=GPUTask, bind=True, rate_limit="2/s")
def limited(self):
    """May start twice a second on a worker."""
    with run_of(self):
        return


@app.task(base=GPUTask, bind=True)
def give_back(self, gate):
    """Gives its GPU back, then works on until the gate opens."""
    with run_of(self):
        self.lease.release()
        note(what="given back", task=self.request.id)
        while not (JOURNAL.parent / gate).exists():
            time.sleep(0.01)
        self.lease.check()
    return self.lease.lost


@app.task(base=DyingTask, bind=True, acks_late=True)
def end_as(self, how):
    """Ends in this way; its worker dies just then."""
    with run_of(self):
        if how == "RETRY" and not self.request.retries:
            raise self.retry(countdown=0)
        if how == "FAILURE":
            raise ValueError("no")
        return how


@app.task(base=GPUTask, bind=True)
def wait_then(self, gate, how):
    """Waits for the gate, then returns its GPU, raises or retries."""
    with run_of(self):
        while not (JOURNAL.parent / gate).exists():
            time.sleep(0.01)
        if how == "FAILURE":
            raise ValueError("no")
        if how == "RETRY" and not self.request.retries:
            raise self.retry(countdown=0)
        return self.gpu.id


@app.task(base=GPUTask, bind=True)
def collect(self, results):
    """The body of a chord."""
    with run_of(self):
        return results


@app.task(base=GPUTask, bind=True)
def watch(self, gate):
    """Runs until the gate opens; was its lease lost by then?"""
    with run_of(self):
        while not (JOURNAL.parent / gate).exists():
            time.sleep(0.01)
    return self.lease.lost


@app.task(base=GPUTask, bind=True, max_retries=1)
def give_back_and_retry(self):
    """Gives its GPU back, then asks to run once more."""
    with run_of(self):
        self.lease.release()
        if not self.request.retries:
            raise self.retry(countdown=0)


@app.task(bind=True)
def plain(self):
    """No GPU task."""
    note(what="plain", task=self.request.id)


@app.task
def errback(request, exc, traceback):
    """Of a task that failed."""
    note(what="errback", task=request.id, error=type(exc).__name__)


@app.task(base=GPUTask, bind=True)
def die_with_main(self):
    """Ends its worker's main process, and itself: `kill -9` each time."""
    with run_of(self):
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(base=GPUTask, bind=True)
def never_starts(self):
    """Its message holds up every worker's main process, while the heartbeat goes on; see `hold_up`."""
    with run_of(self):
        return


@signals.task_received.connect(weak=False)
def hold_up(request, **_):
    """A hook of the project that hangs for as long as the message's claim lasts."""
    if request.name != never_starts.name:
        return
    claim = request.claim
    note(what="held up", task=request.id, gpu=claim.gpu)
    with redis.Redis.from_url(URL, decode_responses=True) as client:
        while client.hget(f"gpu:claim:{claim.gpu}", "token") == claim.token:
            time.sleep(0.05)


@app.task(base=GPUTask, bind=True)
def hold_gil(self, seconds):
    """No other thread of this process runs meanwhile."""
    with run_of(self):
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@app.task(base=GPUTask, bind=True)
def throw(self, kind):
    """Raises any exception of Python's own, also one that is no Exception."""
    with run_of(self):
        raise getattr(builtins, kind)(kind)


class ThrowsOutside(GPUTask):
    """Raises where Celery's tracer does not expect it."""

    def before_start(self, task_id, args, kwargs):
        """Before the body."""
        if args[0] == "before":
            note(what="before", task=task_id)
            raise SystemExit(3)

    def after_return(self, status, *_):
        """After it, when the end is stored."""
        if self.request.args[0] == "after":
            raise MemoryError


@app.task(base=ThrowsOutside, bind=True)
def throw_outside(self, _where):
    """Ends well by itself."""
    with run_of(self):
        return


@app.task(base=GPUTask, bind=True)
def wait_then_hold_gil(self, gate, seconds):
    """As `hold_gil`, once the gate is open."""
    with run_of(self):
        while not (JOURNAL.parent / gate).exists():
            time.sleep(0.01)
        note(what="holding", task=self.request.id)
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))


class SlowRequest(Request):
    """A user's own request, which keeps main between START and the pool until a gate is open."""

    def revoked(self):
        """Asked by Celery before it runs."""
        note(what="starting", task=self.id)
        while not (JOURNAL.parent / "start").exists():
            time.sleep(0.01)
        return super().revoked()


@app.task(base=GPUTask, bind=True, Request=SlowRequest)
def start_slowly(self):
    """Ends at once."""
    with run_of(self):
        return


@app.task(base=GPUTask, bind=True)
def fork_and_wait(self, gate):
    """Leaves a process behind that has all that its own had open."""
    with run_of(self):
        if os.fork() == 0:
            while not (JOURNAL.parent / "grandchild").exists():
                time.sleep(0.1)
            os._exit(0)
        while not (JOURNAL.parent / gate).exists():
            time.sleep(0.01)


@app.task(base=GPUTask, bind=True)
def start_program(self, gate, has_session):
    """Starts another program, in a session of its own or not, and never ends it."""
    with run_of(self):
        program = subprocess.Popen(["sleep", "600"], start_new_session=has_session)
        note(what="program", task=self.request.id, pid=program.pid)
        while not (JOURNAL.parent / gate).exists():
            time.sleep(0.01)


@app.task(base=GPUTask, bind=True)
def want_memory(self, gate):
    """Wants 400 MB, but only in its first run; where it does not get them, it raises."""
    with run_of(self):
        while not (JOURNAL.parent / gate).exists():
            time.sleep(0.01)
        marker = JOURNAL.parent / f"{self.request.id}.wanted"
        if not marker.exists():
            marker.touch()
            return len(b"x" * (400 << 20))
    return 0


@app.task(base=GPUTask, bind=True)
def reach_a_limit(self):
    """As `want_memory`, where the process may have no more than it has (`ulimit -v`)."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    with run_of(self):
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (50 << 20), before[1]))
        try:
            return len(b"x" * (400 << 20))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
