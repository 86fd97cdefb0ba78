"""The project under RQ."""

import os

from jobs import sleep_and_tell
from redis import Redis
from rq import Queue


def work(seconds):
    """The worker forks a process for each job: the worker is its parent."""
    return sleep_and_tell(os.getppid(), seconds)


def run_all(jobs, seconds):
    """What the jobs told, once all have ended."""
    queue = Queue("bench", connection=Redis.from_url(os.environ["BENCH_URL"]))
    return [one.latest_result(timeout=120).return_value for one in [queue.enqueue(work, seconds) for _ in range(jobs)]]
