"""The project of the fault tests, with what steering needs: it notes each `task_revoked`, and where it was sent."""

import os
import time

from celery import signals
from proj import JOURNAL, GPUTask, app, note, run_of


@signals.task_revoked.connect(weak=False)
def revoked(request, terminated, expired, **_):
    """Tells the test."""
    note(
        what="revoked",
        task=request.id,
        terminated=terminated,
        expired=expired,
        args=list(request.args),
        pid=os.getpid(),
    )


@app.task(base=GPUTask, bind=True, max_retries=1, name="proj.retry_when_revoked")
def retry_when_revoked(self):
    """Asks to run once more, when a test has revoked it."""
    with run_of(self):
        wait_for_gate(self.request.id)
        raise self.retry(countdown=0)


@app.task(base=GPUTask, bind=True, rate_limit="1/s", name="proj.rare")
def rare(self):
    """One a second on each worker."""
    with run_of(self):
        return


def wait_for_gate(gate):
    """Until the test opens it."""
    path = JOURNAL.parent / gate
    while not path.exists():
        time.sleep(0.01)
