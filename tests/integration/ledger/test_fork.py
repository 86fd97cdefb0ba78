"""A pool's child is forked while threads of its parent speak to Redis: it must not wait for their locks."""

import os
import signal
import threading
from contextlib import contextmanager


@contextmanager
def held_by_another_thread(lock):
    is_held, is_over = threading.Event(), threading.Event()

    def hold():
        with lock:
            is_held.set()
            is_over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_child_speaks_to_redis_although_its_parent_was_forked_while_a_thread_held_the_pools_lock(world):
    ledger = world.ledger
    ledger.agenda()  # the parent has a client, and the script
    with held_by_another_thread(ledger.client.connection_pool._lock):
        pid = os.fork()
        if pid == 0:
            signal.alarm(5)  # a child that waits for ever is killed
            os._exit(0 if ledger.is_reachable() and ledger.agenda() else 1)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
