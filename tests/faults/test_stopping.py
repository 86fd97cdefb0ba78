"""However a worker is told to stop: it ends, its GPU is offline at once, and nothing that it had is lost."""

import json
import os
import signal
from contextlib import contextmanager
from enum import Enum

import pytest

from celery_gpulease import LeaseLost
from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.worker.processes import is_gone
from tests.faults.conftest import world_on
from tests.faults.world import HOST, LONG, SOON, TTL, now
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
    (ticket,) = world.client.hkeys(f"gpu:task:{task}")
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
    is_deaf = pool == "solo" and stop is Stop.SHUTDOWN  # it reads commands between two tasks, or after the second
    assert is_deaf or world.runs(waiting) == []
    world.open("go")
    world.worker(1)
    world.succeeds(task, waiting)
    assert len(world.runs(task)) == (1 if runs_on else 2)
    elsewhere = [run.task for run in world.runs() if run.gpu == f"{HOST}:1"]
    assert is_deaf or elsewhere == ([waiting] if runs_on else [task, waiting])


@pytest.mark.long
@pytest.mark.parametrize("stop", [Stop.QUIT, Stop.TERM_THEN_QUIT, Stop.SOFT_TOO_LATE])
def test_what_may_run_only_once_and_is_stopped_fails(world, stop):
    worker = stop.worker(world, "prefork")
    task = world.send("wait_for_once", "never")
    world.started(task)
    stop.tell(world, worker)
    worker.wait()
    is_left(world)
    world.worker(1)  # writes the end that its worker left
    assert isinstance(world.ends(task, "FAILURE"), LeaseLost)
    assert len(world.runs(task)) == 1


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
@pytest.mark.parametrize("stop", [Stop.TERM, Stop.QUIT, Stop.INT_TWICE, Stop.SHUTDOWN])
def test_an_idle_worker_stops_at_once_and_is_offline(world, pool, stop):
    worker = stop.worker(world, pool)
    world.succeeds(world.send("add", 1, 2))
    wait_until(lambda: not world.lease(0), SOON, "the GPU to be free")  # a result is there a moment before that
    stop.tell(world, worker)
    worker.wait(SOON)
    is_left(world)


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_whoever_insists_three_times_loses_nothing(world, pool):
    worker = Stop.QUIT.worker(world, pool)
    task = world.send("wait_for", "go")
    world.started(task)
    for number in range(3):
        said = len(worker.output)
        worker.send(signal.SIGQUIT)
        if (
            pool == "threads" and number < 2
        ):  # two signals that wait are one; the third, Celery's hard shutdown, is mute
            wait_until(lambda said=said: len(worker.output) > said, SOON, "the signal to be heard")
    if pool == "threads":
        world.open("go")
    worker.wait()
    world.worker(1)
    world.open("go")
    world.succeeds(task)
    assert len(world.runs(task)) == (1 if pool == "threads" else 2)


LOST = {
    "all": lambda one: True,
    "pubsub": lambda one: int(one["sub"]) or int(one["psub"]),
    "brpop": lambda one: one["cmd"] == "brpop",
}


def cut(world, which):
    """Kills connections as a firewall would: those of this kind, but for our own; how many."""
    own = world.client.client_id()
    victims = [one for one in world.client.client_list() if LOST[which](one) and int(one["id"]) != own]
    for one in victims:
        world.client.client_kill_filter(_id=one["id"])
    return len(victims)


@pytest.mark.parametrize(
    ("pool", "which", "cancels"),
    [
        ("prefork", "all", True),
        *(
            pytest.param(pool, which, cancels, marks=pytest.mark.long)
            for pool in ("prefork", "solo", "threads")
            for which in LOST
            for cancels in (False, True)
            if (pool, which, cancels) != ("prefork", "all", True)
        ),
    ],
)
def test_a_lost_connection_ends_no_healthy_run(world, pool, which, cancels):
    conf = {**world.conf, "worker_cancel_long_running_tasks_on_connection_loss": cancels}
    worker = world.worker(0, "-P", pool, TEST_CONF=json.dumps(conf))
    task = world.send("wait_for", "go")
    run = world.started(task)
    following = world.send("add", 1, 2)
    assert cut(world, which)
    if pool != "solo" and which != "pubsub":  # solo notices when its task has ended
        wait_until(lambda: worker.log.count("Connected to") > 1, LONG, "the worker to come back")
    wait_until(lambda: now() > run.start + TTL, SOON, "a ttl to pass")
    world.open("go")
    world.succeeds(task, following)
    assert [len(world.runs(one)) for one in (task, following)] == [1, 1]
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    is_left(world)


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_a_restarted_pool_ends_what_runs_first_and_serves_on(world, pool):
    conf = {**world.conf, "worker_pool_restarts": True}
    worker = world.worker(0, "-P", pool, TEST_CONF=json.dumps(conf))
    task, following = world.send("wait_for", "go"), world.send("add", 1, 2)
    world.started(task)
    world.app.control.broadcast("pool_restart", arguments={"reload": False})
    if pool == "prefork":
        wait_until(lambda: now() > world.runs(task)[0].start + 1, SOON, "the order to arrive")
    world.open("go")
    world.succeeds(task, following)
    assert [len(world.runs(one)) for one in (task, following)] == [1, 1]
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    is_left(world)


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
@pytest.mark.parametrize("stop", [Stop.TERM, Stop.QUIT, Stop.INT_TWICE])
def test_what_has_started_and_is_not_yet_with_the_pool_is_not_lost(world, pool, stop):
    worker = stop.worker(world, pool)
    task = world.send("start_slowly")
    wait_until(lambda: any(line["what"] == "starting" for line in world.journal()), SOON, "the start")
    stop.tell(world, worker)
    world.open("start")
    worker.wait()
    is_left(world)
    world.worker(1)
    world.succeeds(task)
    assert len(world.runs(task)) == 1


class Away(Enum):
    """How Redis does not answer."""

    KILLED = "connections are refused"
    FROZEN = "connections stay open, and nobody answers"


@contextmanager
def without(server, how):
    """A while in which the server does not answer."""
    server.kill() if how is Away.KILLED else os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        server.start() if how is Away.KILLED else os.kill(server.pid, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "pool", "stop", "is_busy"),
    [
        (Away.KILLED, "prefork", Stop.TERM, True),
        (Away.KILLED, "prefork", Stop.QUIT, True),
        (Away.KILLED, "solo", Stop.TERM, True),
        (Away.KILLED, "threads", Stop.QUIT, True),
        (Away.FROZEN, "prefork", Stop.QUIT, True),
        # busy, these would wait for a task that stores its result: for as long as `redis_socket_timeout` lets it
        (Away.FROZEN, "prefork", Stop.TERM, False),
        (Away.FROZEN, "solo", Stop.TERM, False),
        (Away.FROZEN, "threads", Stop.QUIT, False),
    ],
)
def test_while_redis_is_away_a_worker_stops_all_the_same_and_its_task_is_not_lost(
    server_binary, tmp_path, monkeypatch, how, pool, stop, is_busy
):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    kept = ("--appendonly", "yes", "--appendfsync", "always")
    with EmbeddedServer(*kept, binary=server_binary) as server, world_on(server.url, tmp_path) as world:
        worker = stop.worker(world, pool)
        task = world.send("wait_for", "go", countdown=0 if is_busy else 60)
        if is_busy:
            world.started(task)
        with without(server, how):
            told = now()
            stop.tell(world, worker)
            world.open("go")
            worker.wait()
            print(f"stopped {now() - told:.1f} s after it was told")
            wait_until(lambda: now() > told + TTL, SOON, "a ttl to pass")
        if is_busy:
            world.worker(1)
            world.succeeds(task)
            world.rest()


@pytest.mark.long
def test_a_cold_shutdown_ends_although_celerys_pool_does_not(world):
    worker = world.worker(0, "-P", "custom", CELERY_CUSTOM_WORKER_POOL="stuck:StuckPool")
    task = world.send("wait_for", "go")
    run = world.started(task)
    worker.send(signal.SIGQUIT)
    assert worker.wait() != 0
    assert is_gone(run.pid)
    world.worker(1)
    world.open("go")
    world.succeeds(task)
    assert world.row(0)["state"] == "offline"
