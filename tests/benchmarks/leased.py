"""The project under celery_gpulease; leases and results are in the round's own Redis, whatever the broker."""

import os

from celery import Celery
from jobs import define

from celery_gpulease import GPULease, GPUTask

app = Celery("bench", broker=os.environ["BENCH_BROKER"], backend=os.environ["BENCH_URL"])
app.conf.gpulease_redis_url = os.environ["BENCH_URL"]
GPULease(app)
work, nothing, mark, run_all = define(app, GPUTask)
