"""The same tasks under plain Celery, as people set it up for GPUs, and under celery_gpulease.

Plain: one shared queue, one process a worker, prefetch 1, late acknowledgement. BENCH_VARIANT chooses. BENCH_BROKER may
name another broker, RabbitMQ say: the leases and the results stay in the bench's own Redis.
"""

import os
import time

from celery import Celery, Task

URL = os.environ["BENCH_URL"]
IS_PLAIN = os.environ["BENCH_VARIANT"] == "plain"

app = Celery("bench", broker=os.environ.get("BENCH_BROKER", URL), backend=URL)
app.conf.update(
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)
if IS_PLAIN:
    Base = Task
else:
    from celery_gpulease import GPULease, GPUTask

    app.conf.gpulease_redis_url = URL
    GPULease(app)
    Base = GPUTask


@app.task(base=Base, bind=True)
def work(self, seconds):
    """Answers with who ran, from when to when, on one clock for all processes."""
    began = time.monotonic()
    time.sleep(seconds)
    return self.request.hostname, began, time.monotonic()


@app.task(base=Base, ignore_result=True)
def nothing():
    """Does nothing; its result is not asked for."""
