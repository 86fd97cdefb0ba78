"""Result backends of Redis that take their time."""

import threading
import time

from celery.backends.redis import RedisBackend
from kombu.utils.objects import cached_property


class SlowBackend(RedisBackend):
    """Its client takes its time where a thread beside main asks for it first.

    Each thread has one of its own; they share the lock of `client`, as in kombu it is.
    """

    @cached_property
    def client(self):
        """Made while the lock is held."""
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.6)
        return self._create_client(**self.connparams)


class StoringSlowly(RedisBackend):
    """Whoever stores a result waits after it."""

    def _set(self, *args):
        super()._set(*args)
        time.sleep(2)
