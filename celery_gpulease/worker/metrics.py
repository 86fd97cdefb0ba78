"""A GPU worker's own metrics, at its own port: what nobody else can know."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from celery import bootsteps
from celery.utils.log import get_logger

from celery_gpulease.installed import installation
from celery_gpulease.loops import Loop
from celery_gpulease.prometheus import Server
from celery_gpulease.worker import gpu_worker as gpu_workers
from celery_gpulease.worker.measures import RENEWALS

if TYPE_CHECKING:
    from celery_gpulease.model import Device
    from celery_gpulease.worker.gpu_worker import GPUWorker

logger = get_logger(__name__)

#: Seconds until a port that another has is tried again.
TRY_EVERY: Final = 5.0


def port_of(first: int, device: Device) -> int:
    """The port of a GPU's worker: the workers of one host have the same setting, and a port each."""
    return first + device.index


class Endpoint(Loop):
    """Tries until it has its port; what runs matters more than what is told of it.

    Args:
        gpu_worker: What it tells of.
        port: Where.
    """

    def __init__(self, gpu_worker: GPUWorker, port: int) -> None:
        super().__init__("metrics")
        self._gpu_worker, self._port = gpu_worker, port
        self._is_refused = False
        for answer in ("renewed", "regained", "unanswered"):  # so that its first step is seen as one
            gpu_worker.tally.count(RENEWALS, gpu_worker.device.id, answer, by=0)

    def turn(self) -> float:
        """One try; the last one when it succeeds, since the server has threads of its own."""
        try:
            server = Server(self._gpu_worker.tally.readings, "", self._port)
        except OSError as error:
            if not self._is_refused:
                words = "No metrics: port %d (gpulease_metrics_port and the GPU's index) cannot be had now: %s"
                logger.error(words, self._port, error)  # noqa: TRY400
            self._is_refused = True
            return TRY_EVERY
        os.register_at_fork(after_in_child=server.forget)  # a child that outlives us must not keep the port
        logger.info("Metrics: port %d", self._port)
        self.stop()
        return 0.0


class MetricsStep(bootsteps.StartStopStep):
    """Serves the metrics of a GPU's worker where `gpulease_metrics_port` is set, until its process ends."""

    label = "GPU metrics"
    requires = ("celery_gpulease.worker.bootsteps:GPUStep",)

    def __init__(self, worker: Any, gpu: str | None = None, **options: Any) -> None:
        super().__init__(worker, **options)
        self.enabled = gpu is not None

    def start(self, worker: Any) -> None:
        """The pool has forked, so its first children have nothing of it."""
        settings, gpu_worker = installation(worker.app).settings, gpu_workers.current
        if settings.metrics_port is not None and gpu_worker is not None:
            Endpoint(gpu_worker, port_of(settings.metrics_port, gpu_worker.device)).start()

    def stop(self, _worker: Any) -> None:
        """Nothing: while a worker stops, what it still runs is of interest."""

    def terminate(self, _worker: Any) -> None:
        """Nothing, likewise."""
