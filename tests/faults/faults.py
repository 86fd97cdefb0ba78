"""Every fault that the tests and `make chaos` know, each a member of one enum.

::

    with Fault.REDIS_CUT.during(world):
        ...                               # it lasts so long
                                          # and is mended here, where it is of a kind that can be mended
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

from tests.faults.world import World

Injector = Callable[[World], Iterator[None]]
_INJECTORS: "dict[Fault, Callable[[World], AbstractContextManager[None]]]" = {}


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

    def during(self, world: World) -> AbstractContextManager[None]:
        """Breaks it at the beginning of the block, and mends it at its end."""
        return _INJECTORS[self](world)


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
