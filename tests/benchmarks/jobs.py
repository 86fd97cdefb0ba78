"""What the jobs of every queue do, and how a sender of Celery's measures them."""

import json
import os
import time


def sleep_and_tell(who, seconds):
    """The job: who ran it, from when to when, on one clock for all processes."""
    began = time.monotonic()
    time.sleep(seconds)
    return who, began, time.monotonic()


def define(app, base):
    """The same tasks over any base; `BENCH_CONF` has settings of this round."""
    app.conf.update(
        worker_prefetch_multiplier=1,
        task_acks_late=True,
        broker_connection_retry_on_startup=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        **json.loads(os.environ["BENCH_CONF"]),
    )

    @app.task(base=base, bind=True, name="bench.work")
    def work(self, seconds):
        return sleep_and_tell(self.request.hostname, seconds)

    @app.task(base=base, ignore_result=True, name="bench.nothing")
    def nothing():
        """Its result is not asked for."""

    @app.task(base=base, ignore_result=True, bind=True, name="bench.mark")
    def mark(self, seconds):
        """Leaves a mark when it starts."""
        self.backend.client.rpush("marks", f"{self.request.hostname} {time.monotonic()}")
        time.sleep(seconds)

    def run_all(jobs, seconds):
        return [one.get(timeout=120) for one in [work.delay(seconds) for _ in range(jobs)]]

    return work, nothing, mark, run_all
