"""The Celery project on whose GPU the notebook works too. It knows nothing of notebooks."""

import os
import time

from celery import Celery

from celery_gpulease import GPULease, GPUTask

url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
app = Celery("proj", broker=url, backend=url)
app.conf.gpulease_host = "node7"  # so that the GPUs are called here as they are in the README
GPULease(app)


@app.task(base=GPUTask, bind=True)
def render(self: GPUTask, scene: str) -> dict:
    """Stands for a minute of work, and says from when to when it had the GPU."""
    began = time.time()
    time.sleep(0.3)
    return {"scene": scene, "gpu": self.gpu.id, "began": began, "ended": time.time()}
