"""How Redis, the way to it, its clock and its events are broken."""

import os
import signal
import threading
from collections.abc import Iterator

import redis

from tests.faults.faults import Fault, injects
from tests.faults.world import World

HOUR = 3600.0


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


@injects(Fault.CLOCK_FORWARD)
def clock_forward(world: World) -> Iterator[None]:
    """By libfaketime."""
    world.clock.set(HOUR)
    yield
    world.clock.set(0)


@injects(Fault.CLOCK_BACK)
def clock_back(world: World) -> Iterator[None]:
    """By libfaketime."""
    world.clock.set(-HOUR)
    yield
    world.clock.set(0)


@injects(Fault.CLOCK_AHEAD)
def clock_ahead(world: World) -> Iterator[None]:
    """By libfaketime."""
    world.clock.step(HOUR)
    yield


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
