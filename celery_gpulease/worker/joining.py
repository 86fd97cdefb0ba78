"""A worker takes its GPU over: from nobody, from a dead worker, never from a living one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from celery.utils.log import get_logger

from celery_gpulease.exceptions import ConfigurationError, GPUInUse
from celery_gpulease.facts import facts
from celery_gpulease.model import Presence
from celery_gpulease.worker.leftovers import end_left_by
from celery_gpulease.worker.processes import is_certainly_alive, is_certainly_dead

if TYPE_CHECKING:
    from celery_gpulease.exceptions import GPULeaseError
    from celery_gpulease.model import Device
    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

#: Seconds between two looks at the presence of another worker of the same GPU.
LOOK_EVERY: Final = 0.2


def join(gpu_worker: GPUWorker) -> None:
    """Registers the GPU. A presence that is there may be a dead worker's: where we cannot tell, it is waited for.

    Raises:
        GPUInUse: Another worker serves this GPU: we see that it lives, or its presence was renewed meanwhile.
        ConfigurationError: So it is, and it goes by another name there.
    """
    gpu = gpu_worker.device.id
    first: list[str] | None = None
    told = gpu_worker.ledger.last_presence(gpu)
    dead = named_dead(gpu_worker, gpu, Presence.from_json(told)) if told else ""
    while True:
        word, *found = gpu_worker.join(dead)
        if word == "joined":
            return
        name = found.pop(0) if word == "named" else gpu
        other, seen, is_stopping = Presence.from_json(found[0]), found[:2], found[2] == "1"
        if (is_certainly_alive(other) and not is_stopping) or seen != (first or seen):
            raise refusal(gpu_worker.device, name, other)
        if other.instance != dead and (dead := named_dead(gpu_worker, name, other)):
            if name != gpu:
                gpu_worker.ledger.bury(name, dead)
            continue
        if first is None:
            logger.warning("GPU %s has %s; waiting whether it lives", name, describe(other))
            first = seen
        time.sleep(LOOK_EVERY)


def refusal(device: Device, name: str, other: Presence) -> GPULeaseError:
    """Why this GPU, or its name, cannot be ours."""
    who = f"{name} is in use by {describe(other)}"
    if name == device.id:
        return GPUInUse(f"GPU {who}; stop it, or name another GPU")
    if device.uuid and ":" not in name:
        return ConfigurationError(
            f"GPU {device.alias} is another one already: {who}, and this one is {device.id}. Give each host, or "
            "container, a name of its own (GPULEASE_HOST)"
        )
    return ConfigurationError(
        f"GPU {device.alias} is served under another name: {who}. Give all workers of a host NVML "
        "(celery-gpulease[nvml]), or none; and stop that one first"
    )


def named_dead(gpu_worker: GPUWorker, gpu: str, last: Presence) -> str:
    """The instance of this worker, where it is certainly dead, which the log then says; else empty."""
    if not is_certainly_dead(last):
        return ""
    logger.warning("GPU %s had %s, which is dead: it is taken over", gpu, describe(last), extra=facts(gpu=gpu))
    end_left_by(gpu_worker.ledger, gpu, last)
    return last.instance


def describe(presence: Presence) -> str:
    """Names a worker for people."""
    return f"worker {presence.worker} (pid {presence.pid} on {presence.host})"
