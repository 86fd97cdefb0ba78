"""Trains a network and uses it, each under a lease of its own. Nothing here touches CUDA before a task runs."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from checkpoints import Checkpoints
from network import Training
from proj import app

from celery_gpulease import GPUTask

FOLDER = Path(os.environ.get("CHECKPOINTS", "checkpoints"))  # one for all hosts: a task may go on at another
STEPS_PER_CHECKPOINT = 20


@app.task(base=GPUTask, bind=True)
def train(self: GPUTask, steps: int = 100) -> dict[str, Any]:
    """Trains a network; given out again after a death, it goes on where the last run stopped.

    What it writes is named by its task id, which a second run shares: to run it again is harmless.
    """
    checkpoints = Checkpoints(FOLDER, self.request.id, self.lease.fence)
    training = Training(checkpoints.newest())
    began_at = training.step
    while training.step < steps:
        self.lease.check()  # raises LeaseLost: better to stop than to work on another's GPU
        training.advance()
        if training.step % STEPS_PER_CHECKPOINT == 0 or training.step == steps:
            checkpoints.write(training.save)
    return {
        "training": self.request.id,
        "from_step": began_at,
        "to_step": training.step,
        "loss": training.loss,
        "where": f"{training.device} of {self.gpu.id}",
    }


@app.task(base=GPUTask, bind=True)
def classify(self: GPUTask, training: dict[str, Any], seed: int) -> dict[str, Any]:
    """Shows the trained network pictures that it has never seen."""
    loaded_before = load.cache_info().hits
    network = load(training["training"])
    return {
        "right": network.share_right(seed),
        "was_loaded": load.cache_info().hits > loaded_before,
        "where": f"{network.device} of {self.gpu.id}",
    }


@lru_cache(maxsize=1)
def load(training: str) -> Training:
    """The network on the GPU: loaded once per child, and kept for the tasks that come after.

    What is kept stays in the GPU's memory between the tasks, also while another program has the lease. Where that
    matters, start the worker with `--max-tasks-per-child 1`.
    """
    return Training(Checkpoints(FOLDER, training).newest())
