"""A project with tasks that a plain worker must not run, however they are made."""

import os

from celery import Celery
from celery.worker.request import Request

from celery_gpulease import GPULease, GPUTask

app = Celery("grudges", broker=os.environ["TEST_URL"], backend=os.environ["TEST_URL"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    gpulease_lease_ttl=3,
    gpulease_key_prefix=os.environ.get("TEST_PREFIX", "gpu:"),
    task_protocol=int(os.environ.get("TEST_PROTOCOL", "2")),
    worker_direct=True,
    accept_content=["json", "yaml"],
)
GPULease(app)


class OwnRequest(Request):
    """A request class that knows nothing of GPUs."""


@app.task(base=GPUTask, bind=True)
def where(self, *args, **kwargs):
    """On which GPU it runs, and what it was told."""
    return [self.gpu.id, args, kwargs, self.request.eta]


@app.task(base=GPUTask, bind=True, Request=OwnRequest)
def requested(self):
    """The same, with a request of its own."""
    return self.gpu.id


@app.task(base=GPUTask, bind=True, Request="grudges:OwnRequest")
def requested_by_name(self):
    """The same, named."""
    return self.gpu.id
