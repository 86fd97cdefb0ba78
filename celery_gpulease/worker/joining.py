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
    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

#: Seconds between two looks at the presence of another worker of the same GPU.
LOOK_EVERY: Final = 0.2


def join(gpu_worker: GPUWorker) -> None:
    """Registers the GPU. A presence that is there may be a dead worker's: where we cannot tell, it is waited for.

    Raises:
        GPUInUse: Another worker serves this GPU: we see that it lives, or its presence was renewed meanwhile.
        ConfigurationError: The GPU is registered under another name.
    """
    gpu = gpu_worker.device.id
    first: list[str] | None = None
    told = gpu_worker.ledger.last_presence(gpu)
    dead = named_dead(gpu_worker, Presence.from_json(told)) if told else ""
    while True:
        word, *found = gpu_worker.join(dead)
        if word == "joined":
            return
        if word == "named":
            message = f"GPU {gpu_worker.device.alias} is served as {found[0]}: give all workers NVML, or none"
            raise ConfigurationError(message)
        other, seen, is_stopping = Presence.from_json(found[0]), found[:2], found[2] == "1"
        if (is_certainly_alive(other) and not is_stopping) or seen != (first or seen):
            message = f"GPU {gpu} is in use by {describe(other)}; stop it, or name another GPU"
            raise GPUInUse(message)
        if other.instance != dead and (dead := named_dead(gpu_worker, other)):
            continue
        if first is None:
            logger.warning("GPU %s has %s; waiting whether it lives", gpu, describe(other))
            first = seen
        time.sleep(LOOK_EVERY)


def named_dead(gpu_worker: GPUWorker, last: Presence) -> str:
    """The instance of this worker, where it is certainly dead, which the log then says; else empty."""
    if not is_certainly_dead(last):
        return ""
    gpu = gpu_worker.device.id
    logger.warning("GPU %s had %s, which is dead: it is taken over", gpu, describe(last), extra=facts(gpu=gpu))
    end_left_by(gpu_worker.ledger, gpu, last)
    return last.instance


def describe(presence: Presence) -> str:
    """Names a worker for people."""
    return f"worker {presence.worker} (pid {presence.pid} on {presence.host})"
