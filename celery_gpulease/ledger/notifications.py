"""What the server must be asked to do for us: publish events of keys, and never evict a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import redis

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.ledger.connection import in_our_words

if TYPE_CHECKING:
    from celery_gpulease.ledger.ledger import Ledger

FLAGS: Final = "notify-keyspace-events"
#: Keyspace channels; generic commands (DEL); expiry; eviction.
WANTED: Final = frozenset("Kgxe")


def switch_on(ledger: Ledger) -> str | None:
    """Switches the server's events on without touching what others set; what stands in the way, or None.

    `CONFIG GET` is lossy (beside `A`, the flags `m`, `n`, `o` and `c` are not all shown), so nothing is written where
    nothing is missing.

    Raises:
        ConfigurationError: `gpulease_notifications` is 'require', and the server refuses.
    """
    mode = ledger.settings.notifications
    if mode == "off":
        return None
    try:
        with in_our_words("notifications"):
            _add_flags(ledger.client)
    except redis.exceptions.ResponseError as error:
        cure = f"set {FLAGS} to at least 'Kgxe' in the server's configuration"
        if mode == "require":
            message = f"gpulease_notifications is 'require', and the server refuses CONFIG ({error}): {cure}"
            raise ConfigurationError(message) from error
        return f"the server refuses CONFIG ({error}); if events are off, free GPUs are found at each heartbeat: {cure}"
    return None


def are_missing(ledger: Ledger) -> bool | None:
    """Does the server publish less than we need? False where that is not ours to change, None where we cannot ask."""
    if ledger.settings.notifications == "off":
        return False
    try:
        with in_our_words("notifications"):
            return not _is_enough(_present_flags(ledger.client))
    except redis.exceptions.ResponseError:
        return None


def eviction_trouble(ledger: Ledger) -> str | None:
    """Says that the server may evict leases, or None (also where it does not let us ask)."""
    policy = eviction_policy(ledger)
    if policy in ("noeviction", None):
        return None
    return f"maxmemory-policy is {policy}: the server may evict leases and held tasks; set it to noeviction"


def eviction_policy(ledger: Ledger) -> str | None:
    """The server's `maxmemory-policy`; None where it does not let us ask (a refused CONFIG is told by `switch_on`)."""
    try:
        with in_our_words("maxmemory-policy"):
            return str(ledger.client.config_get("maxmemory-policy").get("maxmemory-policy", "noeviction"))
    except redis.exceptions.ResponseError:  # as hosted servers do
        return _shown_policy(ledger)


def _shown_policy(ledger: Ledger) -> str | None:
    try:
        with in_our_words("maxmemory-policy"):
            return str(ledger.client.info("memory").get("maxmemory_policy", "noeviction"))
    except redis.exceptions.ResponseError:
        return None


def _add_flags(client: redis.Redis) -> None:
    present = _present_flags(client)
    if not _is_enough(present):
        client.config_set(FLAGS, "".join(sorted(present | WANTED)))


def _present_flags(client: redis.Redis) -> set[str]:
    return set(client.config_get(FLAGS).get(FLAGS) or "")


def _is_enough(present: set[str]) -> bool:
    return "K" in present and ("A" in present or set("gxe") <= present)
