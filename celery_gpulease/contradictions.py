"""Settings of Celery's with which GPU tasks cannot work."""

from __future__ import annotations

from typing import Any, Final

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.servers import redis_urls, refuse_unusable_ssl

#: What Celery adds to a broker's URL that lacks it.
BESIDE_THE_URL: Final = ("broker_port", "broker_user", "broker_password", "broker_vhost")
#: The same of the Redis client's.
PLACES: Final = ("host", "port", "db", "unix_socket_path", "path")


def refuse_contradictions(conf: Any) -> None:
    """Looks for settings that GPU tasks cannot work with.

    Args:
        conf: Celery's `app.conf`.

    Raises:
        ConfigurationError: There is one; the message names it and the cure.
    """
    _refuse_places(conf)
    refuse_unusable_ssl(conf)
    _refuse_steps(conf.broker_transport_options.get("priority_steps"))


def _refuse_places(conf: Any) -> None:
    for name in BESIDE_THE_URL if redis_urls(conf.broker_write_url) else ():
        if conf.get(name) is not None:
            message = f"{name}: where GPU tasks go is known by the broker's URL alone; say it in broker_url"
            raise ConfigurationError(message)
    options = conf.get("gpulease_redis_options")
    for name in PLACES:
        if isinstance(options, dict) and name in options:
            message = f"gpulease_redis_options: {name!r} says where the leases live; say it in gpulease_redis_url"
            raise ConfigurationError(message)


def _refuse_steps(steps: Any) -> None:
    """A routed message is put where a message of priority 0 lies; kombu looks there only if 0 is among the steps."""
    if steps is not None and 0 not in steps:
        message = (
            f"broker_transport_options: priority_steps = {steps!r} has no 0, and a GPU's worker would not find what is "
            "put into its queue; begin the steps with 0 (GPU tasks have their own priorities, from 0 to 255)"
        )
        raise ConfigurationError(message)
