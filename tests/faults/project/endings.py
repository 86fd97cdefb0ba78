"""Tasks that end in every way: the table is in tests/faults/test_endings.py."""

import ctypes
import os
import signal
import sys
import time
import uuid
from contextlib import contextmanager

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from proj import JOURNAL, app, note

from celery_gpulease import GPUTask

__all__ = ["app"]

_run = None


@contextmanager
def run_of(task, last="end"):
    """Notes one run's start and end; `last` is the line after which the GPU may be free."""
    global _run
    _run, request = uuid.uuid4().hex, task.request
    note(
        what="start", run=_run, task=request.id, gpu=task.gpu.id, fence=task.lease.fence, pid=os.getpid(),
        retries=request.retries, last=last,
    )  # fmt: skip
    try:
        time.sleep(0.02)  # long enough to be seen
        yield
    except BaseException as error:
        note(what="end", run=_run, how=type(error).__name__)
        raise
    note(what="end", run=_run, how="ok")


def number_of_this_run(task):
    """1 for the first; a run that has begun counts, however it ended."""
    lines = JOURNAL.read_text().splitlines()
    return sum('"what": "start"' in line and task.request.id in line for line in lines)


def spend_in_c(seconds):
    """One call into C that no signal interrupts, and that holds the GIL."""

    class Timespec(ctypes.Structure):
        _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    until = time.time() + seconds
    deadline = Timespec(int(until), int(until % 1 * 1e9))
    mutex = ctypes.create_string_buffer(64)  # zeros are PTHREAD_MUTEX_INITIALIZER
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_timedlock(mutex, ctypes.byref(deadline))  # ours already: it waits until the deadline


class Unheard(BaseException):
    """Neither an Exception nor one of Python's own exits."""


ENDS = {
    "ValueError": lambda: _raise(ValueError("no")),
    "MemoryError": lambda: _raise(MemoryError("no")),
    "BaseException": lambda: _raise(Unheard("no")),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    "sys.exit": lambda: sys.exit(3),
    "Ignore": lambda: _raise(Ignore()),
    "Reject": lambda: _raise(Reject("no", requeue=False)),
    "Reject and requeue": lambda: _raise(Reject("later", requeue=True)),
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(3)": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "unserialisable": object,
}


def _raise(error):
    raise error


def end(self, how, times=99):
    """Ends in this way the first so many times, then well."""
    with run_of(self):
        number = number_of_this_run(self)
        return ENDS[how]() if number <= times else number


def wait(self):
    """Runs until its gate opens: a file that is named like its id."""
    with run_of(self):
        while not (JOURNAL.parent / self.request.id).exists():
            time.sleep(0.01)


def compute(self, seconds, times=99):
    """Spends its time in C the first so many times."""
    with run_of(self):
        if number_of_this_run(self) <= times:
            note(what="computes", run=_run, task=self.request.id)
            spend_in_c(seconds)


def gpu_task(function, name, **options):
    """One body under several names, each with its options."""
    return app.task(function, name=f"endings.{name}", bind=True, **{"base": GPUTask, **options})


for body in (end, wait, compute):
    gpu_task(body, body.__name__)
    gpu_task(body, f"{body.__name__}_once", acks_late=False)
gpu_task(end, "end_and_reject", reject_on_worker_lost=True)
gpu_task(end, "end_once_and_reject", reject_on_worker_lost=True, acks_late=False)
retried = {"retry_on_worker_lost": True, "default_retry_delay": 0}
gpu_task(end, "end_and_retry", **retried)
gpu_task(end, "end_once_and_retry", acks_late=False, **retried)
gpu_task(end, "end_and_retry_one_time", max_retries=1, reject_on_worker_lost=True, **retried)
gpu_task(end, "end_by_autoretry", autoretry_for=(ValueError,), retry_backoff=False, default_retry_delay=0)
gpu_task(compute, "compute_again", acks_on_failure_or_timeout=False)
gpu_task(compute, "compute_again_once", acks_on_failure_or_timeout=False, acks_late=False)
gpu_task(end, "end_at_a_rate", rate_limit="2/s")


@app.task(base=GPUTask, bind=True)
def retry(self, times, max_retries):
    """Retries so many times."""
    with run_of(self):
        if self.request.retries < times:
            raise self.retry(countdown=0, max_retries=max_retries)


@app.task(base=GPUTask, bind=True)
def replace(self):
    """Another task takes its place."""
    with run_of(self):
        raise self.replace(app.signature("endings.end", ("ValueError", 0)))


@app.task(base=GPUTask, bind=True)
def catch_soft_limit(self):
    """Ends well when its soft limit comes."""
    with run_of(self):
        try:
            while True:
                time.sleep(0.01)
        except SoftTimeLimitExceeded:
            return "caught"


class FailingStart(GPUTask):
    """Fails before its body."""

    abstract = True

    def before_start(self, *_):
        """Raises."""
        raise ValueError("not today")


class FailingSuccess(GPUTask):
    """Fails after its body, when its result is stored."""

    abstract = True

    def on_success(self, *_):
        """Raises, which Celery logs."""
        raise ValueError("not today")


class SlowReturn(GPUTask):
    """Works on after its body."""

    abstract = True

    def after_return(self, *_):
        """Takes a while."""
        time.sleep(0.3)
        note(what="returned", run=_run)


class DyingInSuccess(GPUTask):
    """Its process dies when its result is stored."""

    abstract = True

    def on_success(self, *_):
        """Ends the process, but slowly."""
        time.sleep(0.3)
        os._exit(3)


class DyingInReturn(GPUTask):
    """The same, a little later."""

    abstract = True

    def after_return(self, *_):
        """Ends the process, but slowly."""
        time.sleep(0.3)
        os._exit(3)


def end_in_hook(self):
    """Whatever comes, comes after its body."""
    with run_of(self, last="returned"):
        return


gpu_task(end, "fail_before_it_starts", base=FailingStart)
gpu_task(end, "fail_on_success", base=FailingSuccess)
gpu_task(end_in_hook, "return_slowly", base=SlowReturn)
gpu_task(end_in_hook, "die_on_success", base=DyingInSuccess)
gpu_task(end_in_hook, "die_on_success_once", base=DyingInSuccess, acks_late=False)
gpu_task(end_in_hook, "die_after_return", base=DyingInReturn)
