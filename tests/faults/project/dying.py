"""Workers that die at the worst moment, once for each task."""

import os
import signal
import time
from pathlib import Path

from celery.backends.redis import RedisBackend

from celery_gpulease import GPUTask

FOLDER = Path(os.environ["TEST_JOURNAL"]).parent


def kill_worker_once(task_id):
    """Ends the worker's main process, and with it this one."""
    marker = FOLDER / f"{task_id}.killed"
    if not marker.exists():
        marker.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


class DyingBackend(RedisBackend):
    """The worker dies when a part of a chord is stored, and not counted yet."""

    def on_chord_part_return(self, request, *args, **options):
        """See above."""
        kill_worker_once(request.id)
        return super().on_chord_part_return(request, *args, **options)


class DyingBeforeTheBody(RedisBackend):
    """The worker dies when all parts of a chord are counted, and its body is this process's to send."""

    def _chord_publish_claim_expires(self, *args):
        """Celery's last step before it sends the body (from 5.7 on)."""
        kill_worker_once("body")
        return super()._chord_publish_claim_expires(*args)


class DyingTask(GPUTask):
    """The worker dies when the end of a run is stored or its retry is held, and its lease is not released yet."""

    abstract = True

    def on_success(self, _retval, task_id, *_):
        """See above."""
        kill_worker_once(task_id)

    def on_failure(self, _exc, task_id, *_):
        """See above."""
        kill_worker_once(task_id)

    def on_retry(self, _exc, task_id, *_):
        """See above."""
        kill_worker_once(task_id)
