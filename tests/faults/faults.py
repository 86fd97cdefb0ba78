"""Every fault that the tests and `make chaos` know, each a member of one enum.

::

    with Fault.REDIS_CUT.during(world):
        ...                               # it lasts so long
                                          # and is mended here, where it is of a kind that can be mended
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

import redis

from tests.faults.world import World

Injector = Callable[[World], Iterator[None]]
_INJECTORS: "dict[Fault, Callable[[World], AbstractContextManager[None]]]" = {}


class Fault(Enum):
    """What breaks, in a sentence."""

    REDIS_CUT = "every connection to Redis is reset, none accepted"
    REDIS_RESET = "every connection to Redis is reset once"
    REDIS_STALLED = "nothing passes to or from Redis; then all of it does"
    REDIS_HALF_OPEN = "the connections to Redis stay open, and nothing passes on them ever again"
    EVENTS_OFF = "somebody switches the server's keyspace events off"
    EVENTS_LATE = "the server does not notice by itself that a key's time is over"
    EVENTS_LOST = "the connections that listen are cut; what is published meanwhile reaches nobody"
    EVENTS_IN_MASSES = "keys of others are deleted as fast as the server can"
    MASTER_DEMOTED = "by order, sentinels make the replica the master and the master a replica"
    MASTER_FROZEN = "the master is stopped until its replica has been promoted, and then goes on as if nothing had been"
    MASTER_KILLED = "the master is killed, and sentinels promote its replica"

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


@injects(Fault.MASTER_KILLED)
def master_killed(world: World) -> Iterator[None]:
    """It comes back at the end, and the sentinels make it the replica."""
    world.server.kill()
    yield
    world.server.start()


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


@injects(Fault.MASTER_FROZEN)
def master_frozen(world: World) -> Iterator[None]:
    """It takes itself for the master until a sentinel tells it otherwise."""
    os.kill(world.server.pid, signal.SIGSTOP)
    yield
    os.kill(world.server.pid, signal.SIGCONT)


@injects(Fault.MASTER_DEMOTED)
def master_demoted(world: World) -> Iterator[None]:
    """As for a server's maintenance."""
    world.sentinels.fail_over()
    yield
