"""The beat task: in the schedule of every app on which `GPULease` was called."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from celery import Task

from celery_gpulease.dispatch.ending import write_ends
from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.installed import installation
from celery_gpulease.model import RECONCILE_TASK, unique
from celery_gpulease.reconcile.corrections import BUDGET, reconcile

#: Not Celery's: an app is finalized before Celery sets its loggers up, which would swallow what they are told.
logger = logging.getLogger(__name__)

#: Seconds after which no further end is begun: beat, which may do this itself, has others to send. The rest is written
#: at the next tick, or by a worker.
WRITING: Final = 1.0


def reconcile_now(app: Any) -> list[str]:
    """Reconciles in this process, and writes ends that are due (no worker may live); what was corrected, for people."""
    ledger = installation(app).ledger
    found = reconcile(ledger, unique(), budget=BUDGET)
    until = time.monotonic() + WRITING
    write_ends(app, ledger, is_over=lambda: time.monotonic() >= until)
    return [str(one) for one in found or ()]


def add_to_schedule(app: Any) -> None:
    """Registers the task and puts it in beat's schedule, at `gpulease_reconcile_interval`.

    Its message is never queued: the seam turns it into a wake-up of one worker (sending/holding.py).
    """

    @app.task(base=Task, name=RECONCILE_TASK, ignore_result=True, shared=False)  # none of the project's own
    def reconcile_task() -> list[str]:
        return reconcile_now(app)

    def schedule(sender: Any, **_: Any) -> None:
        try:
            interval = installation(app).settings.reconcile_interval
        except ConfigurationError as error:  # a sender, or a worker with --gpu, is refused when it comes to that
            logger.error("GPU tasks cannot be held: %s", error)  # noqa: TRY400  the message says it all
            return
        sender.add_periodic_task(interval, sender.signature(RECONCILE_TASK), name=RECONCILE_TASK)

    app.on_after_finalize.connect(schedule, weak=False)
