"""The tasks of `make chaos`: each notes its runs, and whether another was at work on its GPU at the same time."""

import ctypes
import fcntl
import os
import signal
import time
from contextlib import contextmanager

from celery.exceptions import Reject
from proj import JOURNAL, app, note, run_of

from celery_gpulease import GPUTask

__all__ = ["app"]


@contextmanager
def alone(task):
    """Notes a run, under a lock that the kernel takes back when its process is gone, however that one ends."""
    with (JOURNAL.parent / f"{task.gpu.id}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(what="overlap", task=task.request.id, gpu=task.gpu.id, fence=task.lease.fence)
        with run_of(task):
            yield


def spend(seconds):
    """In short steps, so that a signal or an exception finds it at once."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)


def gpu_task(**options):
    """A GPU task that is bound."""
    return app.task(base=GPUTask, bind=True, **options)


@gpu_task()
def work(self, seconds):
    """Takes its time."""
    with alone(self):
        spend(seconds)


@gpu_task()
def careful(self, seconds):
    """The same; looks at its lease meanwhile."""
    with alone(self):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.lease.check()
            time.sleep(0.05)


@gpu_task(acks_late=False)
def once(self, seconds):
    """The same; may not run twice."""
    with alone(self):
        spend(seconds)


@gpu_task(ignore_result=True)
def silent(self, seconds):
    """The same; stores nothing."""
    with alone(self):
        spend(seconds)


@gpu_task(rate_limit="1/s")
def limited(self, seconds):
    """The same; a worker starts one each second."""
    with alone(self):
        spend(seconds)


@gpu_task(time_limit=2, soft_time_limit=1)
def timed(self, seconds):
    """The same; its time is limited."""
    with alone(self):
        spend(seconds)


@gpu_task()
def fail(self, seconds):
    """Raises."""
    with alone(self):
        spend(seconds)
        raise ValueError(seconds)


@gpu_task(max_retries=5)
def retry(self, times, seconds):
    """Retries so many times, each after a while."""
    with alone(self):
        if self.request.retries < times:
            raise self.retry(countdown=seconds)


@gpu_task()
def replace(self, seconds):
    """Another task takes its place."""
    with alone(self):
        raise self.replace(work.si(seconds))


@gpu_task()
def reject(self, seconds):
    """Asks to run once more."""
    with alone(self):
        spend(seconds)
        if not self.request.delivery_info.get("redelivered"):
            raise Reject("not now", requeue=True)


@gpu_task()
def give_back(self, seconds):
    """Gives its GPU back, and works on."""
    with alone(self):
        self.lease.release()
        spend(seconds)


@gpu_task()
def hold_gil(self, seconds):
    """No other thread of its process runs meanwhile."""
    with alone(self):
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@gpu_task()
def want_memory(self, seconds):
    """More than CHILDREN_OUT_OF_MEMORY leaves a process."""
    with alone(self):
        held = b"x" * (150 << 20)
        spend(seconds)
    return len(held)


@gpu_task()
def die(self, seconds):
    """Ends the process that runs it, each time."""
    with alone(self):
        spend(seconds)
        os.kill(os.getpid(), signal.SIGKILL)


@gpu_task()
def collect(self, results, seconds):
    """The body of a chord."""
    with alone(self):
        spend(seconds)
        return len(results)


@app.task(bind=True)
def plain(self, *_):
    """No GPU task."""
    note(what="plain", task=self.request.id)
