"""Every fault that the tests and `make chaos` know, each a member of one enum.

::

    with Fault.REDIS_CUT.during(world):
        ...                               # it lasts so long
                                          # and is mended here, where it is of a kind that can be mended
    Fault.PROCESS_KILLED.hit(world, worker)  # what happens to a process, and is not mended
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

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

    PROCESS_STOPPED = "a process is stopped for three ttl, those that it has started are not"
    WORKER_STOPPED = "all processes of a worker are stopped for three ttl"
    PROCESS_KILLED = "one process is killed"
    PROCESS_TERMINATED = "a process gets SIGTERM: a worker's warm shutdown"
    PROCESS_QUIT = "a process gets SIGQUIT: a worker's cold shutdown"
    CHILDREN_KILLED = "the processes of a worker's pool are killed"
    WORKER_KILLED = "all processes of a worker are killed, as by a power cut"
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


@injects(Fault.WORKER_STOPPED)
def worker_stopped(_world: World, process: Process) -> Iterator[None]:
    """As a laptop that sleeps."""
    yield from stop_for_three_ttl([process.pid, *process.children()])


def hits(fault: Fault) -> Callable[[Blow], Blow]:
    """Marks the function that does this to a process."""

    def register(blow: Blow) -> Blow:
        _BLOWS[fault] = blow
        return blow

    return register


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


@hits(Fault.CHILDREN_KILLED)
def children_killed(_world: World, process: Process) -> None:
    """By somebody's hand."""
    for pid in process.children():
        os.kill(pid, signal.SIGKILL)


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
