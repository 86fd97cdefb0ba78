"""Every fault that the tests and `make chaos` know, each a member of one enum.

::

    with Fault.REDIS_CUT.during(world):
        ...                               # it lasts so long
                                          # and is mended here, where it is of a kind that can be mended
    Fault.PROCESS_KILLED.hit(world, worker)  # what happens to a process, and is not mended
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

import psutil
import redis

from tests.faults.memory import limit_memory
from tests.faults.world import LONG, TTL, World
from tests.processes import Process
from tests.waiting import wait_until

Injector = Callable[..., Iterator[None]]
Blow = Callable[[World, Process], None]
_INJECTORS: "dict[Fault, Callable[..., AbstractContextManager[None]]]" = {}
_BLOWS: "dict[Fault, Blow]" = {}


class Fault(Enum):
    """What breaks, in a sentence."""

    REDIS_CUT = "every connection to Redis is reset, none accepted"
    REDIS_RESET = "every connection to Redis is reset once"
    REDIS_STALLED = "nothing passes to or from Redis; then all of it does"
    REDIS_HALF_OPEN = "the connections to Redis stay open, and nothing passes on them ever again"
    REDIS_SLOW = "whatever is sent to Redis comes 100 ms late"
    REDIS_KILLED = "Redis is killed, and starts again with what it has on disk"
    REDIS_FORGETS = "Redis is killed, and starts again as it was when this began"
    REDIS_STOPPED = "Redis keeps its connections, and answers nothing"
    REDIS_CLIENTS_KILLED = "Redis closes every connection"
    REDIS_SCRIPTS_FLUSHED = "Redis forgets every script"
    REDIS_FLUSHED = "the database is emptied"
    REDIS_SWAPPED = "an empty database stands in its place"
    REDIS_SWAPPED_BACK = "an empty database stands in its place for a while"
    REDIS_FULL = "Redis has no memory for what is new"
    REDIS_EVICTS = "Redis has no memory, and throws away whatever has a TTL"
    REDIS_READ_ONLY = "Redis is a replica of a server that is not there"
    REDIS_WITHOUT_REPLICAS = "Redis refuses to write, since too few replicas hear it"
    EVENTS_OFF = "somebody switches the server's keyspace events off"
    EVENTS_LATE = "the server does not notice by itself that a key's time is over"
    EVENTS_LOST = "the connections that listen are cut; what is published meanwhile reaches nobody"
    EVENTS_IN_MASSES = "keys of others are deleted as fast as the server can"
    MASTER_KILLED = "the master is killed, and sentinels promote its replica"

    CLOCK_FORWARD = "the server's clock is an hour ahead, and then right again"
    CLOCK_BACK = "the server's clock is an hour behind, and then right again"
    PROCESS_STOPPED = "a process is stopped for three ttl, those that it has started are not"
    CHILDREN_STOPPED = "the processes of a worker's pool, or its companion, are stopped for three ttl"
    WORKER_STOPPED = "all processes of a worker are stopped for three ttl"
    CHILDREN_TERMINATED = "the processes of a worker's pool, or its companion, get SIGTERM"
    CHILDREN_QUIT = "the processes of a worker's pool, or its companion, get SIGQUIT"
    CHILDREN_OUT_OF_MEMORY = "the kernel kills a process of a worker's pool for the memory that it wants"
    PROCESS_KILLED = "one process is killed"
    CHILDREN_KILLED = "the processes of a worker's pool are killed"
    WORKER_KILLED = "all processes of a worker are killed, as by a power cut"
    PROCESS_TERMINATED = "a process gets SIGTERM: a worker's warm shutdown"
    PROCESS_QUIT = "a process gets SIGQUIT: a worker's cold shutdown"
    RABBITMQ_KILLED = "RabbitMQ is killed, and starts again"
    RABBITMQ_RESTARTED = "RabbitMQ stops in order, and starts again"
    RABBITMQ_BLOCKED = "RabbitMQ is short of memory, and reads nothing from who publishes"
    RABBITMQ_HURRIES = "RabbitMQ closes the channel of who does not acknowledge within a second"

    @property
    def is_blow(self) -> bool:
        """Does it hit a process, and is not mended?"""
        return self in _BLOWS

    def hit(self, world: World, process: Process) -> None:
        """Does it to this process of the world."""
        _BLOWS[self](world, process)

    def during(self, world: World, *process: Process) -> AbstractContextManager[None]:
        """Breaks it, or this process, at the beginning of the block, and mends it at its end."""
        return _INJECTORS[self](world, *process)


def injects(fault: Fault) -> Callable[[Injector], Injector]:
    """Marks the function that provokes this fault: a generator that yields once, while it lasts."""

    def register(inject: Injector) -> Injector:
        _INJECTORS[fault] = contextmanager(inject)
        return inject

    return register


@injects(Fault.REDIS_CUT)
def redis_cut(world: World) -> Iterator[None]:
    """By the proxy."""
    world.proxy.cut()
    yield
    world.proxy.heal()


@injects(Fault.REDIS_RESET)
def redis_reset(world: World) -> Iterator[None]:
    """By the proxy."""
    world.proxy.reset()
    yield


@injects(Fault.REDIS_STALLED)
def redis_stalled(world: World) -> Iterator[None]:
    """By the proxy."""
    world.proxy.stall()
    yield
    world.proxy.heal()


@injects(Fault.REDIS_HALF_OPEN)
def redis_half_open(world: World) -> Iterator[None]:
    """By the proxy."""
    world.proxy.lose()
    yield


@injects(Fault.REDIS_SLOW)
def redis_slow(world: World) -> Iterator[None]:
    """By the proxy."""
    world.proxy.delay(0.1)
    yield
    world.proxy.heal()


@injects(Fault.REDIS_KILLED)
def redis_killed(world: World) -> Iterator[None]:
    """What it keeps is said by the options of the test's server."""
    world.server.kill()
    yield
    world.server.start()


@injects(Fault.MASTER_KILLED)
def master_killed(world: World) -> Iterator[None]:
    """It comes back at the end, and the sentinels make it the replica."""
    world.server.kill()
    yield
    world.server.start()


@injects(Fault.REDIS_FORGETS)
def redis_forgets(world: World) -> Iterator[None]:
    """By a snapshot: what a Redis that only saves now and then is left with. Its server must have no AOF."""
    world.client.save()
    yield
    world.server.kill()
    world.server.start()


@injects(Fault.REDIS_STOPPED)
def redis_stopped(world: World) -> Iterator[None]:
    """SIGSTOP: the kernel still accepts connections and data."""
    os.kill(world.server.pid, signal.SIGSTOP)
    yield
    os.kill(world.server.pid, signal.SIGCONT)


@injects(Fault.REDIS_CLIENTS_KILLED)
def redis_clients_killed(world: World) -> Iterator[None]:
    """Of every type that there is."""
    for kind in ("normal", "pubsub", "replica", "master"):
        world.client.client_kill_filter(_type=kind, skipme=True)
    yield


@injects(Fault.REDIS_SCRIPTS_FLUSHED)
def redis_scripts_flushed(world: World) -> Iterator[None]:
    """As a restart does."""
    world.client.script_flush()
    yield


@injects(Fault.REDIS_FLUSHED)
def redis_flushed(world: World) -> Iterator[None]:
    """By somebody who thinks that it is a cache."""
    world.client.flushdb()
    yield


@injects(Fault.REDIS_SWAPPED)
def redis_swapped(world: World) -> Iterator[None]:
    """For good: no event says so."""
    world.client.swapdb(0, 1)
    yield


@injects(Fault.REDIS_SWAPPED_BACK)
def redis_swapped_back(world: World) -> Iterator[None]:
    """And what was written to the other meanwhile is gone."""
    world.client.swapdb(0, 1)
    yield
    world.client.swapdb(0, 1)


@injects(Fault.REDIS_FULL)
def redis_full(world: World) -> Iterator[None]:
    """With `noeviction`, the default."""
    world.client.config_set("maxmemory", 1)
    yield
    world.client.config_set("maxmemory", 0)


@injects(Fault.REDIS_EVICTS)
def redis_evicts(world: World) -> Iterator[None]:
    """With a policy against which every worker has warned."""
    world.client.config_set("maxmemory-policy", "volatile-ttl")
    world.client.config_set("maxmemory", 1)
    yield
    world.client.config_set("maxmemory", 0)
    world.client.config_set("maxmemory-policy", "noeviction")


@injects(Fault.REDIS_READ_ONLY)
def redis_read_only(world: World) -> Iterator[None]:
    """As the old master after a failover."""
    world.client.replicaof("127.0.0.1", 1)
    yield
    world.client.replicaof("NO", "ONE")


@injects(Fault.REDIS_WITHOUT_REPLICAS)
def redis_without_replicas(world: World) -> Iterator[None]:
    """By `min-replicas-to-write`."""
    world.client.config_set("min-replicas-to-write", 1)
    yield
    world.client.config_set("min-replicas-to-write", 0)


def stop_for_three_ttl(pids: list[int]) -> Iterator[None]:
    """From the beginning of the block, and at least until its end."""
    began = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    wait_until(lambda: time.monotonic() - began > 3 * TTL, LONG, "three ttl")
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@injects(Fault.PROCESS_STOPPED)
def process_stopped(_world: World, process: Process) -> Iterator[None]:
    """A worker's main, a beat; what it has started is not."""
    yield from stop_for_three_ttl([process.pid])


@injects(Fault.CHILDREN_STOPPED)
def children_stopped(_world: World, process: Process) -> Iterator[None]:
    """A pool's processes, or the companion."""
    yield from stop_for_three_ttl(process.children())


@injects(Fault.WORKER_STOPPED)
def worker_stopped(_world: World, process: Process) -> Iterator[None]:
    """As a laptop that sleeps."""
    yield from stop_for_three_ttl([process.pid, *process.children()])


def set_clock(world: World, offset: str) -> None:
    """In one step: libfaketime reads the file at every look."""
    new = world.folder / "clock.new"
    new.write_text(offset)
    new.rename(world.folder / "clock")


@injects(Fault.CLOCK_FORWARD)
def clock_forward(world: World) -> Iterator[None]:
    """By libfaketime."""
    set_clock(world, "+3600")
    yield
    set_clock(world, "+0")


@injects(Fault.CLOCK_BACK)
def clock_back(world: World) -> Iterator[None]:
    """By libfaketime."""
    set_clock(world, "-3600")
    yield
    set_clock(world, "+0")


def hits(fault: Fault) -> Callable[[Blow], Blow]:
    """Marks the function that does this to a process."""

    def register(blow: Blow) -> Blow:
        _BLOWS[fault] = blow
        return blow

    return register


def hit_children(process: Process, number: signal.Signals) -> None:
    """Main's own children; what they have started is not meant."""
    for child in psutil.Process(process.pid).children():
        child.send_signal(number)


@hits(Fault.CHILDREN_KILLED)
def children_killed(_world: World, process: Process) -> None:
    """By somebody's hand."""
    hit_children(process, signal.SIGKILL)


@hits(Fault.CHILDREN_TERMINATED)
def children_terminated(_world: World, process: Process) -> None:
    """By somebody's hand."""
    hit_children(process, signal.SIGTERM)


@hits(Fault.CHILDREN_QUIT)
def children_quit(_world: World, process: Process) -> None:
    """By somebody's hand."""
    hit_children(process, signal.SIGQUIT)


@hits(Fault.CHILDREN_OUT_OF_MEMORY)
def children_out_of_memory(world: World, process: Process) -> None:
    """They get a control group of their own, which ends with the test, and less memory than their task wants."""
    limit_memory(world.folder.name, process.children(), 100 << 20)


@hits(Fault.PROCESS_KILLED)
def process_killed(_world: World, process: Process) -> None:
    """A worker's main, whose children go with it; a beat."""
    os.kill(process.pid, signal.SIGKILL)


@hits(Fault.PROCESS_TERMINATED)
def process_terminated(_world: World, process: Process) -> None:
    """As a service manager does."""
    process.send(signal.SIGTERM)


@hits(Fault.PROCESS_QUIT)
def process_quit(_world: World, process: Process) -> None:
    """As somebody who is in a hurry does."""
    process.send(signal.SIGQUIT)


@hits(Fault.WORKER_KILLED)
def worker_killed(_world: World, process: Process) -> None:
    """All at once."""
    process.kill()


@injects(Fault.RABBITMQ_KILLED)
def rabbitmq_killed(world: World) -> Iterator[None]:
    """What is not on its disk is gone."""
    world.rabbitmq.kill()
    yield
    world.rabbitmq.start()


@injects(Fault.RABBITMQ_RESTARTED)
def rabbitmq_restarted(world: World) -> Iterator[None]:
    """As an upgrade does: it closes every connection by name."""
    world.rabbitmq.control("stop")
    world.rabbitmq.kill()
    yield
    world.rabbitmq.start()


@injects(Fault.RABBITMQ_BLOCKED)
def rabbitmq_blocked(world: World) -> Iterator[None]:
    """By its memory alarm."""
    world.rabbitmq.control("set_vm_memory_high_watermark", "0.0001")
    wait_until(lambda: "memory" in world.rabbitmq.control("eval", "rabbit_alarm:get_alarms()."), LONG, "the alarm")
    yield
    world.rabbitmq.control("set_vm_memory_high_watermark", "absolute", "300MB")


@injects(Fault.RABBITMQ_HURRIES)
def rabbitmq_hurries(world: World) -> Iterator[None]:
    """For channels that are opened from now on; it looks at them every second then, not every minute."""
    world.rabbitmq.control("eval", "application:set_env(rabbit, consumer_timeout, 1000).")
    world.rabbitmq.control("eval", "application:set_env(rabbit, channel_tick_interval, 1000).")
    yield
    world.rabbitmq.control("eval", "application:set_env(rabbit, consumer_timeout, 1800000).")
    world.rabbitmq.control("eval", "application:set_env(rabbit, channel_tick_interval, 60000).")


@injects(Fault.EVENTS_OFF)
def events_off(world: World) -> Iterator[None]:
    """Nobody but us switches them on again."""
    world.client.config_set("notify-keyspace-events", "")
    yield


@injects(Fault.EVENTS_LATE)
def events_late(world: World) -> Iterator[None]:
    """As a server with very many keys; it must have been started with `--enable-debug-command yes`."""
    world.client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    yield
    world.client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "1")


@injects(Fault.EVENTS_LOST)
def events_lost(world: World) -> Iterator[None]:
    """Redis' own command; they come back at once, and what happened in between is never told."""
    world.client.client_kill_filter(_type="pubsub")
    yield


@injects(Fault.EVENTS_IN_MASSES)
def events_in_masses(world: World) -> Iterator[None]:
    """By a thread, over a connection of its own."""
    is_over = threading.Event()

    def delete() -> None:
        with redis.Redis(connection_pool=redis.ConnectionPool(**world.client.connection_pool.connection_kwargs)) as one:
            while not is_over.is_set():
                with one.pipeline(transaction=False) as pipe:
                    for number in range(500):
                        pipe.set(f"other:{number}", 1).delete(f"other:{number}")
                    pipe.execute()

    thread = threading.Thread(target=delete)
    thread.start()
    yield
    is_over.set()
    thread.join()
