"""A user's project with GPU tasks. Its own servers are nowhere: whoever asks them fails."""

import os
import threading

from celery import Celery

from celery_gpulease import GPULease, GPUTask

NOWHERE = "redis://127.0.0.1:1/0"

app = Celery("proj", broker=NOWHERE, backend=NOWHERE, set_as_current=False)
app.conf.broker_transport_options = {"global_keyprefix": "production:"}
app.conf.broker_connection_max_retries = 0
app.conf.gpulease_host = "production"
app.conf.gpulease_metrics_port = 9830
GPULease(app)

may_end = threading.Event()


@app.task(base=GPUTask, bind=True, pool="a100")
def where(self):
    self.lease.check()
    return [self.gpu.id, self.gpu.index, self.lease.fence, os.environ.get("CUDA_VISIBLE_DEVICES")]


@app.task(base=GPUTask, bind=True)
def train(self, steps=10**9):
    """Goes on until it loses its lease."""
    for step in range(steps):
        save(step)
        self.lease.check()
    return steps


@app.task(base=GPUTask, bind=True)
def early(self):
    self.lease.release()
    self.lease.check()
    return self.gpu.id


@app.task(base=GPUTask, bind=True, max_retries=1)
def again(self):
    if not self.request.retries:
        raise self.retry(countdown=0)
    return self.request.retries


@app.task(base=GPUTask, bind=True)
def add(self, *numbers):
    return sum(map(int, numbers))


@app.task(base=GPUTask)
def total(numbers):
    return sum(numbers)


@app.task(base=GPUTask)
def hang():
    """Never looks at its lease."""
    may_end.wait(60)


@app.task
def plain(number):
    return number + 1


def save(step):
    """What the tests of its users replace."""
