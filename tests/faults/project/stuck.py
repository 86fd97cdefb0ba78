"""A pool that never comes to the end of its stop, as Celery's own may (`_flush_outqueue` in its asynpool.py)."""

import time

from celery.concurrency.prefork import TaskPool


class StuckPool(TaskPool):
    """See above."""

    def on_stop(self):
        """Waits for ever."""
        while True:
            time.sleep(60)
