"""However a worker is told to stop: it ends, its GPU is offline at once, and nothing that it had is lost."""

import json
import os
import signal
from enum import Enum

import pytest

from tests.faults.world import HOST, SOON
from tests.waiting import wait_until

WARM, COLD = "warm", "cold"
SOFT_SECONDS = 4.0


def term(world, worker):
    worker.send(signal.SIGTERM)
    wait_for_word(worker, "Warm shutdown")


def cold(world, worker):
    worker.send(signal.SIGQUIT)
    wait_for_word(worker, "Hitting Ctrl+C again")


def term_twice(world, worker):
    term(world, worker)
    worker.send(signal.SIGTERM)


def term_then_quit(world, worker):
    term(world, worker)
    cold(world, worker)


def interrupt(world, worker):
    """Ctrl-C reaches the whole group."""
    os.killpg(worker.pid, signal.SIGINT)
    wait_for_word(worker, "will initiate cold shutdown")


def interrupt_twice(world, worker):
    interrupt(world, worker)
    os.killpg(worker.pid, signal.SIGINT)


def remapped_term(world, worker):
    worker.send(signal.SIGTERM)
    wait_for_word(worker, "Hitting Ctrl+C again")


def shut_down(world, worker):
    world.app.control.shutdown()
    if "(solo)" not in worker.output:  # it reads no command while a task runs
        worker.wait_for_log("Got shutdown from remote")


def wait_for_word(worker, words):
    wait_until(lambda: words in worker.output, SOON, f"{words!r} from {worker!r}")


class Stop(Enum):
    """How a worker is told to stop, and what becomes of what it runs, where that can be stopped."""

    TERM = (term, WARM, {}, {})
    TERM_TWICE = (term_twice, WARM, {}, {})
    INT = (interrupt, WARM, {}, {})
    SHUTDOWN = (shut_down, WARM, {}, {})
    QUIT = (cold, COLD, {}, {})
    TERM_THEN_QUIT = (term_then_quit, COLD, {}, {})
    INT_TWICE = (interrupt_twice, COLD, {}, {})
    REMAPPED_TERM = (remapped_term, COLD, {}, {"REMAP_SIGTERM": "SIGQUIT"})
    SOFT_IN_TIME = (cold, WARM, {"worker_soft_shutdown_timeout": SOFT_SECONDS}, {})
    SOFT_TOO_LATE = (cold, COLD, {"worker_soft_shutdown_timeout": 1.0}, {})

    def __init__(self, tell, kind, conf, env):
        self.tell, self.kind, self.conf, self.env = tell, kind, conf, env

    def worker(self, world, pool):
        """A worker that is to be stopped so."""
        return world.worker(0, "-P", pool, TEST_CONF=json.dumps({**world.conf, **self.conf}), **self.env)


def is_left(world, gpu=0):
    """The GPU is offline, at once, and nothing is left where nobody looks."""
    name = f"{HOST}:{gpu}"
    assert not world.client.exists(f"gpu:worker:{name}", f"gpu:lease:{name}", f"gpu:claim:{name}", f"gpu.{name}")
    assert world.client.zscore("gpu:free:default", name) is None
    return True


def ticket_of(world, task):
    (ticket,) = world.client.smembers(f"gpu:task:{task}")
    return world.client.hgetall(f"gpu:ticket:{ticket}")


EVERYDAY = {
    ("prefork", Stop.TERM_THEN_QUIT),
    ("prefork", Stop.SOFT_IN_TIME),
    ("prefork", Stop.SOFT_TOO_LATE),
    ("solo", Stop.QUIT),
    ("threads", Stop.QUIT),
}
CASES = [
    pytest.param(pool, stop, id=f"{pool}-{stop.name}", marks=[] if (pool, stop) in EVERYDAY else pytest.mark.long)
    for pool in ("prefork", "solo", "threads")
    for stop in Stop
]


@pytest.mark.parametrize(("pool", "stop"), CASES)
def test_what_runs_ends_or_goes_back_to_its_place_and_the_rest_waits_for_others(world, pool, stop):
    worker = stop.worker(world, pool)
    task, waiting = world.send("wait_for", "go"), world.send("add", 1, 2)
    world.started(task)
    stop.tell(world, worker)
    runs_on = stop.kind == WARM or pool != "prefork"
    if runs_on:
        world.open("go")
    worker.wait()
    print(worker.output, worker.log)
    is_left(world)
    if runs_on:
        world.succeeds(task)
    else:
        assert (ticket_of(world, task)["state"], ticket_of(world, task)["deliveries"]) == ("pending", "0")
    assert world.runs(waiting) == []
    world.open("go")
    world.worker(1)
    world.succeeds(task, waiting)
    assert len(world.runs(task)) == (1 if runs_on else 2)
    assert [run.task for run in world.runs() if run.gpu == f"{HOST}:1"] == ([waiting] if runs_on else [task, waiting])
