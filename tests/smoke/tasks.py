"""The workers' tasks: pytest-celery copies this file into their containers."""

import json
import os
import time

from celery import shared_task

from celery_gpulease import GPUTask


@shared_task(base=GPUTask, bind=True)
def hold(self):
    """Tells the result backend's Redis where it runs, and runs until it is told to end there."""
    redis, task = self.backend.client, self.request.id
    run = {
        "gpu": self.gpu.id,
        "index": self.gpu.index,
        "fence": self.lease.fence,
        "pid": os.getpid(),
        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
    }
    redis.rpush(f"runs:{task}", json.dumps(run))
    while not redis.exists(f"end:{task}"):
        time.sleep(0.02)
    return self.gpu.id
