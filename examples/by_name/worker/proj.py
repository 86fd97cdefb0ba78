"""The worker's project: it has the tasks, and whatever they import."""

import os

from celery import Celery

from celery_gpulease import GPULease, GPUTask

url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
app = Celery("proj", broker=url, backend=url)
GPULease(app)


@app.task(base=GPUTask, bind=True, name="render.scene", pool="a100")
def scene(self: GPUTask, path: str) -> str:
    """Renders a scene."""
    return f"{path} on GPU {self.gpu.id} under lease {self.lease.fence}"


@app.task(name="mail.notify")
def notify(text: str) -> str:
    """Needs no GPU."""
    return f"sent: {text}"
