"""Jobs that sleep, under plain Celery or ours: BENCH_VARIANT says which, and how it is set up."""

import json
import os
import time

import redis
from celery import Celery, Task

from celery_gpulease import GPULease, GPUTask

#: Where each job writes (a list), and how many jobs each GPU has (a hash), which a sender may look at.
RUNS, ASSIGNED = "bench:runs", "bench:assigned"
#: Celery's settings for each variant; ours needs none.
VARIANTS = {
    "own": {},
    "default": {},
    "one": {"worker_prefetch_multiplier": 1},
    "late": {"worker_prefetch_multiplier": 1, "task_acks_late": True},
    "ours": {},
}


def make(url, variant):
    """The app and its task."""
    app = Celery("line", broker=url, backend=url, changes={"task_default_queue": variant, **VARIANTS[variant]})
    app.conf.update(broker_connection_retry_on_startup=True, worker_cancel_long_running_tasks_on_connection_loss=False)
    client = redis.Redis.from_url(url)
    if variant == "ours":
        app.conf.gpulease_redis_url = url
        GPULease(app)

    @app.task(name="job", base=GPUTask if variant == "ours" else Task, ignore_result=True, shared=False)
    def job(arrival, seconds, gpu):
        start = time.monotonic()
        time.sleep(seconds)
        with client.pipeline(transaction=False) as pipe:
            pipe.hincrby(ASSIGNED, gpu, -1)
            pipe.rpush(RUNS, json.dumps([arrival, start, time.monotonic()]))
            pipe.execute()

    return app, job


if "BENCH_VARIANT" in os.environ:  # a worker
    app, _ = make(os.environ["BENCH_URL"], os.environ["BENCH_VARIANT"])
