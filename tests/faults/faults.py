"""Every fault that the tests and `make chaos` know, each a member of one enum; how is in the `breaking_…` modules.

::

    with Fault.REDIS_CUT.during(world):
        ...                               # it lasts so long
                                          # and is mended here, where it is of a kind that can be mended
    Fault.PROCESS_KILLED.hit(world, worker)  # what happens to a process, and is not mended
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

from tests.faults.world import World
from tests.processes import Process

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
    MASTER_DEMOTED = "by order, sentinels make the replica the master and the master a replica"
    MASTER_FROZEN = "the master is stopped until its replica has been promoted, and then goes on as if nothing had been"
    MASTER_KILLED = "the master is killed, and sentinels promote its replica"

    CLOCK_FORWARD = "the server's clock is an hour ahead, and then right again"
    CLOCK_BACK = "the server's clock is an hour behind, and then right again"
    CLOCK_AHEAD = "the server's clock goes an hour ahead of what it was, and stays there"
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


def hits(fault: Fault) -> Callable[[Blow], Blow]:
    """Marks the function that does this to a process."""

    def register(blow: Blow) -> Blow:
        _BLOWS[fault] = blow
        return blow

    return register
