"""The server: what it is, what it lets us do, and what it does for us; tried out where that can be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kombu.exceptions import OperationalError

from celery_gpulease.ledger import notifications as flags
from celery_gpulease.ledger import probes
from celery_gpulease.ledger.census import presences
from celery_gpulease.ledger.rights import refusals
from celery_gpulease.operate.doctor.finding import Finding, note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger import Ledger

OLDEST: Final = (6, 0)
#: Seconds of a round trip from which the gaps between tasks are felt.
SLOW: Final = 0.1
#: Seconds that the broker gets to answer.
BROKER_SECONDS: Final = 10.0
#: Seconds by which clocks may differ.
CLOCKS: Final = 2.0
#: What differs where many commands are refused in the same words.
QUOTED: Final = re.compile(r"'[^']*'")
ASK_INFO: Final = "its user may not ask INFO or CONFIG"


def broker(app: Any, ledger: Ledger) -> Iterator[Finding]:
    """Whether the broker answers, where it is not the ledger's Redis."""
    if ledger.is_broker:
        return
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=BROKER_SECONDS)
    except OperationalError as error:
        yield Finding(
            f"the broker does not answer: {error}",
            "start it, or correct broker_url: a GPU's worker that has lost it takes no work, though tasks are held",
        )


def round_trip(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """How far away it is."""
    took = probes.round_trip(ledger)
    words = f"a round trip to the ledger's Redis takes {took * 1000:.1f} ms"
    if took > SLOW:
        yield Finding(f"{words}, and a GPU waits for at least three between two tasks", "put it nearer to the workers")
    else:
        yield note(words)


def rights(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """What it refuses us, each command tried out on a key of our own."""
    alike: dict[str, list[str]] = {}
    for command, words in refusals(ledger):
        alike.setdefault(QUOTED.sub("…", words), []).append(command)
    for words, commands in alike.items():
        yield Finding(
            f"the server refuses {', '.join(dict.fromkeys(commands))}: {words}",
            "give the user of gpulease_redis_url what README names under 'Rights in Redis', and the server the memory, "
            "the disk or the replicas that it wants",
        )


def version(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Its version."""
    told = probes.information(ledger, "server")
    if told is None:
        yield note(f"the server does not tell its version: {ASK_INFO}")
        return
    name, text = ("Valkey", told["valkey_version"]) if "valkey_version" in told else ("Redis", told["redis_version"])
    numbers = tuple(map(int, re.findall(r"\d+", str(text))[:2]))
    if numbers < OLDEST:
        yield Finding(f"the server is {name} {text}", f"{OLDEST[0]}.{OLDEST[1]} or newer is needed")
    else:
        yield note(f"the server is {name} {text}")


def persistence(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """What of the held tasks outlives the server's end."""
    told = probes.configuration(ledger, "appendonly", "save")
    if told is None:
        yield from _shown_persistence(ledger)
    elif told.get("appendonly") == "yes":
        return
    elif told.get("save"):
        yield note(
            f"the server only saves now and then (save {told['save']!r}): tasks that were sent since then are lost "
            "when it is killed; `appendonly yes` keeps them"
        )
    else:
        yield _nothing_kept()


def _shown_persistence(ledger: Ledger) -> Iterator[Finding]:
    """INFO tells of the append-only file, and of snapshots only that one was made."""
    told = probes.information(ledger, "persistence")
    if told is None:
        yield note(f"whether the server keeps its data is not known: {ASK_INFO}")
    elif not told.get("aof_enabled"):
        yield note("the server has no append-only file; tasks that were sent since its last snapshot may be lost")


def _nothing_kept() -> Finding:
    return Finding(
        "the server keeps nothing (appendonly no, save ''): every task that is held is lost when it starts again",
        "set appendonly yes",
    )


def eviction(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Whether it throws leases away."""
    policy = flags.eviction_policy(ledger)
    if policy is None:
        yield note(f"the server's maxmemory-policy is not known: {ASK_INFO}; it must be noeviction")
    elif policy != "noeviction":
        yield Finding(
            f"maxmemory-policy is {policy}: short of memory, the server throws away leases, and with allkeys-… held "
            "tasks too",
            "set maxmemory-policy to noeviction",
        )


def notifications(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Whether it tells that a lease has gone: tried out with a probe key."""
    if ledger.settings.notifications == "off":
        yield note("gpulease_notifications is off: a GPU that another program gave back is found at the next heartbeat")
        return
    heard = probes.heard_events(ledger)
    missing = [word for word in ("del", "expired") if word not in heard]
    if not missing:
        return
    words = f"the server published no event for a probe key that went ({', '.join(missing)})"
    if flags.are_missing(ledger) and not presences(ledger):
        yield note(f"{words}; the first worker of a GPU switches {flags.FLAGS} on")
    else:
        yield Finding(
            f"{words}: free GPUs are found at the next heartbeat only",
            f"set {flags.FLAGS} to at least Kgxe in the server's configuration",
        )


def clock(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """How far its clock and this machine's are apart."""
    ahead = probes.clock_ahead(ledger)
    if abs(ahead) > CLOCKS:
        where = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            f"the server's clock is {abs(ahead):.1f} s {where} this machine's: countdown, eta and expires are of the "
            "sender's clock, and end by the server's",
            "let NTP set both",
        )
