"""The project under plain Celery."""

import os

from celery import Celery, Task
from jobs import define

app = Celery("bench", broker=os.environ["BENCH_BROKER"], backend=os.environ["BENCH_URL"])
work, nothing, mark, run_all = define(app, Task)
