"""Tasks that need a GPU each, and have it for themselves while they run."""

import os
import time

from proj import app

from celery_gpulease import GPUTask


@app.task(base=GPUTask, bind=True)
def render(self: GPUTask, scene: str, frames: int = 5) -> str:
    """Stands for an hour of work: each frame takes a tenth of a second."""
    for _ in range(frames):
        self.lease.check()  # raises LeaseLost if the GPU has gone to somebody else
        time.sleep(0.1)
    device = os.environ.get("CUDA_VISIBLE_DEVICES")  # not set where it runs without a lease: render.apply("a.blend")
    return f"{scene} on GPU {self.gpu.id}, which is CUDA device {device} of its host"


@app.task(base=GPUTask, bind=True)
def join(self: GPUTask, films: list[str]) -> str:
    """Runs when all of them are ready; it waits its turn like any other."""
    return f"{len(films)} films joined on GPU {self.gpu.id}"
