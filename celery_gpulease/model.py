"""The values that the parts pass to each other."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, fields
from typing import Any, Final

from celery_gpulease.exceptions import ConfigurationError

#: The message header that makes a task a held one; a retry keeps it, since Celery keeps headers.
HEADER: Final = "gpulease"
#: In that header, set by the worker where an earlier run of the ticket may have stored its end: when the first began.
AGAIN: Final = "again"
#: A held task's state, where `gpulease_track_held` is set.
HELD: Final = "HELD"
#: In front of a GPU's id: the name of its queue.
QUEUE_PREFIX: Final = "gpu."
#: The holes of a held message, which the claim fills (lua/include/message.lua). No JSON text contains them.
QUEUE_HOLE: Final = "\x01"
CLAIM_HOLE: Final = "\x02"
DEFAULT_POOL: Final = "default"
RECONCILE_TASK: Final = "celery_gpulease.reconcile"
#: Priorities as the brokers know them (RabbitMQ: at most 255).
PRIORITIES: Final = range(256)

_POOL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_GPU = re.compile(r"[A-Za-z0-9_.-]{1,100}:[0-9]{1,4}|(GPU|MIG)-[A-Za-z0-9-]{1,100}")


def unique() -> str:
    """32 hexadecimal digits that are nobody else's; `uuid4` takes three times as long to make as good ones."""
    return os.urandom(16).hex()


def check_pool(name: object) -> str:
    """Returns a pool's name.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(name, str) and _POOL.fullmatch(name):
        return name
    message = f"pool {name!r}: a pool's name is 1 to 64 letters, digits, '_', '.' or '-'"
    raise ConfigurationError(message)


def check_gpu(name: object) -> str:
    """Returns a GPU's id, or its other name.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(name, str) and _GPU.fullmatch(name):
        return name
    message = f"gpu {name!r}: a GPU is named by its UUID or as <host>:<index>, such as 'node7:0'"
    raise ConfigurationError(message)


def is_gpu_queue(name: str) -> bool:
    """Is this the name of a GPU's own queue, as a retry names it?"""
    return name.startswith(QUEUE_PREFIX) and _GPU.fullmatch(name.removeprefix(QUEUE_PREFIX)) is not None


@dataclass(frozen=True)
class GPU:
    """A GPU as a task sees it; without a lease both are None."""

    id: str | None
    index: int | None


@dataclass(frozen=True)
class Device:
    """A GPU of this host, as its worker registers it.

    `alias` is `<host>:<index>` in every case; `id` is the UUID where NVML tells it, else the alias. NVML tells
    the model and its memory too.
    """

    id: str
    index: int
    host: str
    uuid: str = ""
    model: str = ""
    memory_bytes: int = 0

    @property
    def alias(self) -> str:
        """The name that needs no NVML."""
        return f"{self.host}:{self.index}"

    @property
    def queue(self) -> str:
        """The name of the queue that only this GPU's worker consumes."""
        return QUEUE_PREFIX + self.id


@dataclass(frozen=True)
class Held:
    """A finished message on its way into the ledger.

    `priority` is the broker's, in its direction. `message` has two holes that the claim fills. Times are the epoch's
    milliseconds, 0 for none. `stamps` is a JSON list of their names, or empty. `run_ticket` and `run_token` name the
    run in whose place the message is sent (a retry, a replacement), else they are empty.
    """

    ticket: str
    task_id: str
    task: str
    pool: str
    pin: str
    priority: int
    eta_ms: int
    expires_ms: int
    message: str
    stamps: str = ""
    run_ticket: str = ""
    run_token: str = ""


@dataclass(frozen=True)
class Claim:
    """What a routed message says of its claim."""

    ticket: str
    gpu: str
    token: str
    fence: int
    delivery: int

    @classmethod
    def from_header(cls, header: object) -> Claim | None:
        """The claim in a message's header, or None where the message was never claimed."""
        claim: Any = header.get("claim") if isinstance(header, dict) else None
        if not isinstance(claim, dict):
            return None
        try:
            found = cls(header["ticket"], claim["gpu"], claim["token"], int(claim["fence"]), int(claim["delivery"]))  # type: ignore[index]
        except (KeyError, TypeError, ValueError, OverflowError):  # written by hand
            return None
        are_texts = all(isinstance(text, str) for text in (found.ticket, found.gpu, found.token))
        if not are_texts or not _GPU.fullmatch(found.gpu) or not found.token.endswith(f"-{found.gpu}-{found.fence}"):
            return None  # written by hand: a token says itself of which GPU and fence it is
        return found


@dataclass(frozen=True)
class Presence:
    """Who serves a GPU: enough to tell a living worker from a dead one, and to name it.

    `started` is when the main process began, by the kernel's clock, and `children` are the pids of the others with the
    same: they mean something only to processes of the same `realm`. It is empty where the kernel does not tell.
    """

    instance: str
    worker: str
    host: str
    pid: int
    version: str
    realm: str = ""
    started: int = 0
    children: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_json(cls, text: str) -> Presence:
        """Reads what a worker said of itself, which may be of an older version or a newer one."""
        told: dict[str, Any] = json.loads(text)
        known = {one.name: told[one.name] for one in fields(cls) if one.name in told}
        known["children"] = tuple((int(pid), int(started)) for pid, started in known.get("children", ()))
        return cls(**known)
