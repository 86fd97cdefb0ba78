"""Every fault that the tests and `make chaos` know, each a member of one enum.

::

    with Fault.REDIS_CUT.during(world):
        ...                               # it lasts so long
                                          # and is mended here, where it is of a kind that can be mended
"""

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
