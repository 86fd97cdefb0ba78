"""Every fault that the tests and `make chaos` know, each a member of one enum.

::

    with Fault.REDIS_CUT.during(world):
        ...                               # it lasts so long
                                          # and is mended here, where it is of a kind that can be mended
    Fault.MAIN_KILLED.hit(world, worker)  # what happens to a process, and is not mended
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

import psutil

from tests.faults.world import World
from tests.processes import Process

Injector = Callable[[World], Iterator[None]]
Blow = Callable[[World, Process], None]
_INJECTORS: "dict[Fault, Callable[[World], AbstractContextManager[None]]]" = {}
_BLOWS: "dict[Fault, Blow]" = {}


class Fault(Enum):
    """What breaks, in a sentence."""

    REDIS_CUT = "every connection to Redis is reset, none accepted"
    REDIS_RESET = "every connection to Redis is reset once"
    REDIS_STALLED = "nothing passes to or from Redis; then all of it does"
    REDIS_HALF_OPEN = "the connections to Redis stay open, and nothing passes on them ever again"

    CLOCK_FORWARD = "the server's clock is an hour ahead, and then right again"
    CLOCK_BACK = "the server's clock is an hour behind, and then right again"
    CHILD_KILLED = "the processes of a worker's pool are killed"
    MAIN_KILLED = "a worker's main process is killed"
    WORKER_KILLED = "all processes of a worker are killed, as by a power cut"

    def hit(self, world: World, process: Process) -> None:
        """Does it to this process of the world."""
        _BLOWS[self](world, process)

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


@hits(Fault.CHILD_KILLED)
def child_killed(_world: World, process: Process) -> None:
    """They are main's own children; what they have started is not meant."""
    for child in psutil.Process(process.pid).children():
        child.kill()


@hits(Fault.MAIN_KILLED)
def main_killed(_world: World, process: Process) -> None:
    """Its children go with it."""
    os.kill(process.pid, signal.SIGKILL)


@hits(Fault.WORKER_KILLED)
def worker_killed(_world: World, process: Process) -> None:
    """All at once."""
    process.kill()
