"""Every fault that the tests and `make chaos` know, each a member of one enum.

::

    with Fault.REDIS_CUT.during(world):
        ...                               # it lasts so long
                                          # and is mended here, where it is of a kind that can be mended
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import Enum

from tests.faults.world import World
from tests.processes import Process

Injector = Callable[[World], Iterator[None]]
_INJECTORS: "dict[Fault, Callable[[World], AbstractContextManager[None]]]" = {}


class Fault(Enum):
    """What breaks, in a sentence."""

    REDIS_CUT = "every connection to Redis is reset, none accepted"
    REDIS_RESET = "every connection to Redis is reset once"
    REDIS_STALLED = "nothing passes to or from Redis; then all of it does"
    REDIS_HALF_OPEN = "the connections to Redis stay open, and nothing passes on them ever again"

    MAIN_KILLED = "`kill -9` of a worker's main process"
    CHILD_KILLED = "`kill -9` of a process that main has started: of a pool's child, or of the companion"
    WORKER_KILLED = "`kill -9` of all processes of a worker"
    MAIN_FROZEN = "a worker's main process is stopped for a while"
    WORKER_FROZEN = "all processes of a worker are stopped for a while"
    WORKER_TERMINATED = "SIGTERM: the warm shutdown of a worker"
    WORKER_QUIT = "SIGQUIT: the cold shutdown of a worker"
    RABBITMQ_KILLED = "RabbitMQ is killed, and starts again"
    RABBITMQ_RESTARTED = "RabbitMQ stops in order, and starts again"
    RABBITMQ_BLOCKED = "RabbitMQ is short of memory, and reads nothing from who publishes"
    RABBITMQ_HURRIES = "RabbitMQ closes the channel of who does not acknowledge within a second"

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


def victim(world: World) -> Process | None:
    """A worker that lives, by the world's chance; it draws one number, whoever lives."""
    gpu = world.chance.choice(sorted(world.workers))
    alive = [worker for worker in (world.workers[gpu], *world.workers.values()) if worker.exit_code is None]
    return alive[0] if alive else None


def send(number: signal.Signals, *pids: int) -> None:
    """Sends a signal to processes; one may have ended just now."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def hits(fault: Fault, number: signal.Signals, choose: Callable[[Process], list[int]]) -> None:
    """Registers a fault that is one signal to some processes of a worker; one that stops them ends by SIGCONT."""

    @injects(fault)
    def inject(world: World) -> Iterator[None]:
        worker = victim(world)
        pids = choose(worker) if worker else []
        send(number, *pids)
        yield
        if number == signal.SIGSTOP:
            send(signal.SIGCONT, *pids)


def main_of(worker: Process) -> list[int]:
    """The process that was started."""
    return [worker.pid]


def children_of(worker: Process) -> list[int]:
    """Those that it has started itself."""
    return worker.children()[:1]


def all_of(worker: Process) -> list[int]:
    """Main first: it shall not see its child die."""
    return [worker.pid, *worker.children()]


hits(Fault.MAIN_KILLED, signal.SIGKILL, main_of)
hits(Fault.CHILD_KILLED, signal.SIGKILL, children_of)
hits(Fault.WORKER_KILLED, signal.SIGKILL, all_of)
hits(Fault.MAIN_FROZEN, signal.SIGSTOP, main_of)
hits(Fault.WORKER_FROZEN, signal.SIGSTOP, all_of)
hits(Fault.WORKER_TERMINATED, signal.SIGTERM, main_of)
hits(Fault.WORKER_QUIT, signal.SIGQUIT, main_of)


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
