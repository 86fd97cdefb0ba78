"""How RabbitMQ is broken."""

from collections.abc import Iterator

from tests.faults.faults import Fault, injects
from tests.faults.world import LONG, World
from tests.waiting import wait_until


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
