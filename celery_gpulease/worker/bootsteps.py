"""The bootstep of `celery worker --gpu`: joins before the fork, serves after it."""

from __future__ import annotations

from functools import partial
from threading import Event, Thread
from typing import Any, Final

import click
from celery import bootsteps
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger

from celery_gpulease import devices
from celery_gpulease.exceptions import GPULeaseError
from celery_gpulease.installed import installation
from celery_gpulease.worker import gpu_worker as gpu_workers
from celery_gpulease.worker import signals
from celery_gpulease.worker.broker import bound_broker, consume_only, outlast_refusals, refuse_broker
from celery_gpulease.worker.consumer import gpu_consumer
from celery_gpulease.worker.gpu_worker import GPUWorker
from celery_gpulease.worker.joining import join
from celery_gpulease.worker.nvml import found_devices
from celery_gpulease.worker.options import banner, parse_pools
from celery_gpulease.worker.plain import plain_consumer
from celery_gpulease.worker.pools import InMainPool
from celery_gpulease.worker.refusals import refuse_metrics, refuse_options, refuse_other_prefix
from celery_gpulease.worker.service import Service
from celery_gpulease.worker.shutdown import close_at_once, end_at_last
from celery_gpulease.worker.tracking import track_starts
from celery_gpulease.worker.troubles import Flags, say_of_eviction, say_of_options

logger = get_logger(__name__)

#: Seconds between two looks at the children of Celery's pool.
CHILDREN_EVERY: Final = 0.2


class WorkerRefused(click.ClickException):
    """The worker does not start; Celery's command prints the reason, exit code 1."""


class GPUStep(bootsteps.StartStopStep):
    """Serves one GPU, when the worker was started with `--gpu`.

    A test's worker (`celery_gpulease.testing`) serves a GPU that is not real: no device is looked for, and nothing
    guards against a task that holds the GIL.
    """

    label = "GPU"
    requires = ("celery.worker.components:Pool",)  # so that our threads start after the fork
    _service: Service

    def __init__(
        self,
        worker: Any,
        gpu: str | None = None,
        gpu_pools: str | None = None,
        *,
        gpu_is_real: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(worker, **options)
        self._is_real = gpu_is_real
        self.enabled = gpu is not None or gpu_pools is not None
        self._gpu, self._gpu_pools, self._options = gpu, gpu_pools, options
        self._has_left = Event()
        if not self.enabled:
            worker.consumer_cls = plain_consumer(symbol_by_name(worker.consumer_cls))

    def create(self, worker: Any) -> None:
        """Checks everything, then joins: what is refused leaves nothing registered.

        Raises:
            WorkerRefused: A setting, an option or the pool is wrong, or the GPU is in use.
        """
        try:
            self._join(worker)
        except GPULeaseError as error:
            reason = f"{type(error).__name__}: {error}"
            if worker.logfile:  # in the background (`celery multi`) nobody sees what the command prints
                logger.critical(reason)
            raise WorkerRefused(reason) from error
        app, device = worker.app, self.gpu_worker.device
        gpu_workers.set_current(self.gpu_worker)
        signals.connect()
        settings = installation(app).settings
        track_starts(app, settings)
        devices.show_only(device)
        consume_only(app, device)
        bound_broker(app, settings.heartbeat_interval)
        outlast_refusals(app)
        worker.consumer_cls = gpu_consumer(
            symbol_by_name(worker.consumer_cls),
            self.gpu_worker,
            on_consuming=lambda: self._service.serve(),  # noqa: PLW0108  # it is made after the fork
            on_stopped=self._leave,
            on_asking=lambda: self._service.deliver(),  # noqa: PLW0108  # likewise
        )

    def _join(self, worker: Any) -> None:
        refuse_options(worker, self._gpu, self._options)
        installed = installation(worker.app)
        found = found_devices() if self._is_real else None
        device = devices.find_device(str(self._gpu), installed.settings.host, found=found)
        refuse_broker(worker.app, device)
        refuse_metrics(installed.settings, device)
        self.gpu_worker = GPUWorker(installed.ledger, device, parse_pools(self._gpu_pools), worker.hostname)
        refuse_other_prefix(installed.ledger, device)
        self._flags = Flags(installed.ledger)
        join(self.gpu_worker)

    def start(self, worker: Any) -> None:
        """Starts the threads: the pool has forked."""
        logger.info(banner(self.gpu_worker.device, self.gpu_worker.pools))
        self._flags.say()
        say_of_eviction(self.gpu_worker.ledger)
        say_of_options(worker)
        self._service = Service(worker, self.gpu_worker, self._flags, is_guarded=self._is_real)
        self._service.start()
        close_at_once(worker, self._service.close)
        if isinstance(worker.pool, PreforkPool):
            at_last = partial(end_at_last, self.gpu_worker, self._has_left, self._leave)
            self.gpu_worker.on_cold = Thread(target=at_last, daemon=True).start

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Lets the pool look for dead children more often: their GPU is free.

        Celery looks when a child closes its last pipe, which is a moment too early to find it dead, and else every five
        seconds (`_event_process_exit` and `timers` in celery/concurrency/asynpool.py).
        """
        hub.call_repeatedly(CHILDREN_EVERY, worker.pool.maintain_pool)
        self._service.register(hub)

    def close(self, _worker: Any) -> None:
        """The worker stops."""
        self._service.close()

    def stop(self, _worker: Any) -> None:
        """Nothing here: the pool ends after this step, and the lease is kept until then (`_leave`)."""

    def terminate(self, worker: Any) -> None:
        """The pool is terminated after this step, and `_leave` gives back what ran.

        Where a task cannot be stopped its end is waited for, as in a warm shutdown: until then the lease is needed.
        """
        self.gpu_worker.turn_cold()
        if isinstance(worker.pool, InMainPool):
            worker.pool.stop()

    def _leave(self) -> None:
        self._has_left.set()
        self._service.leave()
