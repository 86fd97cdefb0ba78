"""Every setting, read and checked in one place."""

from __future__ import annotations

import difflib
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.servers import (
    REDIS_SCHEMES,
    Server,
    find_server,
    readable,
    redis_urls,
    warn_of_shown_password,
    warn_of_unchecked,
)

PREFIX: Final = "gpulease_"
#: Seconds until the next try, after one that failed.
RETRY_EVERY: Final = 0.5
HOST: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
#: Settings whose values are never shown: they may hold a password.
SECRET: Final = ("redis_url", "redis_options")


@dataclass(frozen=True)
class Settings:
    """The settings, as README (Settings) explains them; seconds are floats. Made by :func:`read_settings`."""

    redis_url: str = field(default="", repr=False)
    redis_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    key_prefix: str = "gpu:"
    lease_ttl: float = 30.0
    heartbeat_interval: float = 10.0
    reconcile_interval: float = 30.0
    max_deliveries: int = 3
    notifications: str = "auto"
    track_held: bool = False
    host: str = ""
    metrics_port: int | None = None
    on_lease_lost: str = "terminate"


def read_settings(conf: Any, environ: Mapping[str, str] = os.environ) -> Settings:
    """Reads and checks the settings of an app.

    Args:
        conf: Celery's `app.conf`, or any mapping of the same keys.
        environ: `GPULEASE_HOST` is looked up here.

    Raises:
        ConfigurationError: A setting is wrong or unknown.
    """
    _refuse_unknown(conf)
    ttl = _seconds(conf, "lease_ttl", 30.0)
    heartbeat = _seconds(conf, "heartbeat_interval", ttl / 3)
    if heartbeat > ttl / 2:
        raise _wrong("heartbeat_interval", heartbeat, f"at most half of gpulease_lease_ttl, here {ttl / 2:g} seconds")
    server = _server(conf)
    settings = Settings(
        redis_url=server.url,
        redis_options=server.options,
        key_prefix=_checked(
            conf, "key_prefix", "gpu:", _is_prefix, "a text that ends with ':', without spaces or any of *?[]\\"
        ),
        lease_ttl=ttl,
        heartbeat_interval=heartbeat,
        reconcile_interval=_seconds(conf, "reconcile_interval", 30.0),
        max_deliveries=_checked(conf, "max_deliveries", 3, _is_count, "a whole number, 1 or more"),
        notifications=_choice(conf, "notifications", "auto", "require", "off"),
        track_held=_checked(conf, "track_held", default=False, is_right=_is_bool, wanted="True or False"),
        host=_host(conf, environ),
        metrics_port=_checked(conf, "metrics_port", None, _is_port, "a port's number, or None"),
        on_lease_lost=_choice(conf, "on_lease_lost", "terminate", "warn"),
    )
    warn_of_unchecked(conf)
    return settings


def _server(conf: Any) -> Server:
    """Where the leases live, and how it is reached; `gpulease_redis_options` win over Celery's own settings."""
    options = _checked(conf, "redis_options", {}, _is_mapping, "a dict of options for the Redis client")
    url = conf.get(PREFIX + "redis_url")
    server = find_server(conf) if url is None else _named_server(conf, url)
    if server is None:
        message = "gpulease_redis_url: neither the broker nor the result backend is Redis; say where the leases live"
        raise ConfigurationError(message)
    return Server(server.url, {**server.options, **options})


def _named_server(conf: Any, url: object) -> Server:
    found = redis_urls(url)
    if not found:
        raise _wrong("redis_url", url, f"a URL that begins with one of {', '.join(REDIS_SCHEMES)}")
    server = find_server(conf, found[0]) or Server(readable(PREFIX + "redis_url", found[0]))
    warn_of_shown_password(server)
    return server


def _host(conf: Any, environ: Mapping[str, str]) -> str:
    host = environ.get("GPULEASE_HOST") or conf.get(PREFIX + "host") or socket.gethostname()
    if not isinstance(host, str) or not HOST.fullmatch(host):
        raise _wrong("host", host, "1 to 100 letters, digits, '_', '.' or '-' (the variable GPULEASE_HOST comes first)")
    return host


def _refuse_unknown(conf: Any) -> None:
    """Refuses what is misspelt, and what Celery would not read: in capitals, or outside its namespace."""
    known = {PREFIX + one.name for one in fields(Settings)}
    conf.get("broker_url")  # Celery reads its configuration with the first look at a value
    namespace = str(getattr(conf, "prefix", None) or "")
    for key in map(str, conf):
        name = re.sub(f"^({re.escape(namespace)}|CELERY_)", "", key, flags=re.IGNORECASE).lower()
        if not name.startswith(PREFIX):
            continue
        right = namespace.upper() + name.upper() if namespace.isupper() else namespace + name
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            message = f"{name} is no setting of celery_gpulease{hint}"
            raise ConfigurationError(message)
        if key not in (name, right):
            message = f"{key} is not read by Celery here: write {right}"
            raise ConfigurationError(message)


def _checked(conf: Any, name: str, default: Any, is_right: Callable[[Any], bool], wanted: str) -> Any:
    value = conf.get(PREFIX + name, default)
    if not is_right(value):
        raise _wrong(name, value, wanted)
    return value


def _seconds(conf: Any, name: str, default: float) -> float:
    value = conf.get(PREFIX + name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.1 <= value <= 86400:  # noqa: PLR2004
        raise _wrong(name, value, "seconds, a number from 0.1 to 86400")
    return float(value)


def _choice(conf: Any, name: str, *choices: str) -> str:
    value = conf.get(PREFIX + name, choices[0])
    if value not in choices:
        raise _wrong(name, value, "one of " + ", ".join(map(repr, choices)))
    return str(value)


def _wrong(name: str, value: object, wanted: str) -> ConfigurationError:
    shown = "…" if name in SECRET else repr(value)
    return ConfigurationError(f"{PREFIX}{name} = {shown} is wrong: it must be {wanted}")


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_prefix(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[!-~]*:", value) is not None and not set(value) & set("*?[]\\")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_port(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536)  # noqa: PLR2004
