"""Which Redis a broker or a result backend is, as the ledger's client takes it: its URL, and what goes with the URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.notices import warn

REDIS_SCHEMES: Final = ("redis://", "rediss://", "unix://", "sentinel://")
#: What kombu's and Celery's transport options say of a sentinel's master, by redis-py's names.
OF_SENTINEL: Final = ("master_name", "sentinel_kwargs", "min_other_sentinels")


@dataclass(frozen=True)
class Server:
    """A Redis. It may hold a password, which `repr` does not show."""

    url: str = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def redis_urls(url: object) -> list[str]:
    """The URLs of a broker or result backend that are Redis, as the ledger's client takes them."""
    named = [_as_redis_py(one) for one in urls_of(url)]
    return [one for one in named if one.startswith(REDIS_SCHEMES)]


def urls_of(url: object) -> list[str]:
    """The servers that a broker's URL names; those of one sentinel are one."""
    urls = list(map(str, url)) if isinstance(url, (list, tuple)) else str(url or "").split(";")
    return [";".join(urls)] if urls and urls[0].startswith("sentinel://") else urls


def _as_redis_py(url: str) -> str:
    """A URL in kombu's and Celery's spelling, as redis-py reads it."""
    url = url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
    return re.sub(r"ssl_cert_reqs=(?:ssl\.)?CERT_(\w+)", lambda found: f"ssl_cert_reqs={found[1].lower()}", url)


def find_server(conf: Any, url: str | None = None) -> Server | None:
    """The broker's Redis, else the result backend's, with the TLS and the sentinel that Celery reaches it by.

    Args:
        conf: Celery's `app.conf`.
        url: Only the one with this URL.

    Raises:
        ConfigurationError: Its URL cannot be read.
    """
    for setting, ssl, options in (
        ("broker_url", "broker_use_ssl", "broker_transport_options"),
        ("result_backend", "redis_backend_use_ssl", "result_backend_transport_options"),
    ):
        found = redis_urls(getattr(conf, setting, None))
        if found and url in (None, found[0]):
            known = readable(setting, found[0])
            return Server(known, {**(conf.get(ssl) or {}), **_of_sentinel(known, conf.get(options) or {})})
    return None


def _of_sentinel(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {one: options[one] for one in OF_SENTINEL if one in options} if url.startswith("sentinel://") else {}


def readable(setting: str, url: str) -> str:
    """Returns a URL, which is never shown: it may hold a password.

    Raises:
        ConfigurationError: Its host or port cannot be read; the words of Python's own error may be of the password.
    """
    try:
        for one in url.split(";"):
            _ = urlsplit(one).port
    except ValueError:
        message = (
            f"{setting}: no host and port can be read in it; in a user's name or a password write '/', '#', '?', '@', "
            "'[' and ']' as %2F, %23, %3F, %40, %5B and %5D"
        )
        raise ConfigurationError(message) from None
    return url


def refuse_unusable_ssl(conf: Any) -> None:
    """Refuses what kombu and Celery do not use where the server is a Redis: they would speak in the clear, or fail.

    Raises:
        ConfigurationError: It is no dict of redis-py's options.
    """
    for name, url in (("broker_use_ssl", conf.broker_write_url), ("redis_backend_use_ssl", conf.result_backend)):
        ssl = conf.get(name)
        is_usable = isinstance(ssl, Mapping) and all(str(one).startswith("ssl_") for one in ssl)
        if ssl and redis_urls(url) and not is_usable:
            message = (
                f"{name}: for a Redis it must be a dict such as {{'ssl_cert_reqs': ssl.CERT_REQUIRED, 'ssl_ca_certs': "
                "'/path/to/ca.pem'}; with anything else that connection is not encrypted, or fails"
            )
            raise ConfigurationError(message)


def warn_of_unchecked(conf: Any) -> None:
    """Points out that kombu believes any server behind `rediss://`, unless it is told otherwise."""
    urls = [one for url in (conf.broker_write_url, conf.broker_read_url) for one in urls_of(url)]
    if conf.get("broker_use_ssl") or not any(one.startswith("rediss://") and "ssl_" not in one for one in urls):
        return
    warn(
        "broker_url is rediss://, and says nothing of certificates: the broker's connection accepts any. Set "
        "broker_use_ssl = {'ssl_cert_reqs': ssl.CERT_REQUIRED, 'ssl_ca_certs': '/path/to/ca.pem'}. (The connection to "
        "the leases checks them by default.)"
    )


def warn_of_shown_password(server: Server) -> None:
    """Points out that Celery hides the passwords in its own settings only."""
    if any(urlsplit(one).password for one in server.url.split(";")):
        warn(
            "gpulease_redis_url holds a password, which `celery report` and `celery inspect conf` show; say it in "
            "gpulease_redis_options = {'password': …}"
        )
