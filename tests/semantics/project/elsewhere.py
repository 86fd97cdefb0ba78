"""The project of tests/faults, and what messages from elsewhere ask of it."""

from celery.worker.request import Request
from proj import app, note, run_of

from celery_gpulease import GPUTask

__all__ = ["app"]


class OwnRequest(Request):
    """A user's own request, over Celery's."""

    def on_accepted(self, pid, time_accepted):
        """Its process has it."""
        note(what="own request", task=self.id)
        super().on_accepted(pid, time_accepted)


@app.task(base=GPUTask, bind=True, Request=OwnRequest)
def add_with_own_request(self, x, y):
    """Ends at once."""
    with run_of(self):
        return x + y


@app.task(bind=True)
def no_gpu_task(self):
    """It has no base=GPUTask, and runs on a GPU's worker only where somebody puts it into that one's queue."""
    note(what="plain", task=self.request.id, claim=self.request.get("gpulease", {}).get("claim"))
