"""How processes are stopped and killed."""

import os
import signal
import time
from collections.abc import Iterator

import psutil

from tests.faults.faults import Fault, hits, injects
from tests.faults.memory import limit_memory
from tests.faults.world import LONG, TTL, World
from tests.processes import Process
from tests.waiting import wait_until


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
