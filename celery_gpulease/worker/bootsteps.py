"""The bootstep of `celery worker --gpu`: joins before the fork, serves after it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import click
from celery import bootsteps
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.platforms import EX_FAILURE
from celery.signals import worker_shutting_down
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from celery.worker import state as celery_state

from celery_gpulease import devices
from celery_gpulease.dispatch.dispatcher import Dispatcher
from celery_gpulease.dispatch.ending import EndWriter
from celery_gpulease.dispatch.listener import Listener
from celery_gpulease.exceptions import ConfigurationError, GPULeaseError, LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.ledger.notifications import eviction_trouble, switch_on
from celery_gpulease.reconcile.corrections import has_said
from celery_gpulease.reconcile.pace import ReconcilePace
from celery_gpulease.worker import gpu_worker as gpu_workers
from celery_gpulease.worker import signals
from celery_gpulease.worker.broker import bound_broker, consume_only, outlast_refusals, refuse_broker
from celery_gpulease.worker.companion import Companion
from celery_gpulease.worker.consumer import gpu_consumer
from celery_gpulease.worker.device_watch import DeviceWatch
from celery_gpulease.worker.gpu_worker import GPUWorker
from celery_gpulease.worker.heartbeat import Heartbeat, settle
from celery_gpulease.worker.inbox import Inbox
from celery_gpulease.worker.joining import join
from celery_gpulease.worker.leftovers import end_left_by
from celery_gpulease.worker.neighbours import Neighbours
from celery_gpulease.worker.nvml import found_devices
from celery_gpulease.worker.options import banner, ineffective_options, ineffective_settings, parse_pools
from celery_gpulease.worker.plain import plain_consumer
from celery_gpulease.worker.pools import InMainPool
from celery_gpulease.worker.processes import child_pids, is_gone
from celery_gpulease.worker.refusals import refuse_metrics, refuse_options, refuse_other_prefix
from celery_gpulease.worker.strays import Strays
from celery_gpulease.worker.telling import Teller
from celery_gpulease.worker.tracking import track_starts

if TYPE_CHECKING:
    from collections.abc import Callable


logger = get_logger(__name__)

#: Seconds between two looks at the children of Celery's pool.
CHILDREN_EVERY: Final = 0.2
#: Seconds that Celery's pool gets for a cold shutdown; Kubernetes kills after 30.
LONGEST_COLD_STOP: Final = 15.0
#: Seconds that a worker that stops waits for its heartbeat's last word.
LONGEST_LEAVE: Final = 5.0


class WorkerRefused(click.ClickException):
    """The worker does not start; Celery's command prints the reason, exit code 1."""


class GPUStep(bootsteps.StartStopStep):
    """Serves one GPU, when the worker was started with `--gpu`.

    A test's worker (`celery_gpulease.testing`) serves a GPU that is not real: no device is looked for, and nothing
    guards against a task that holds the GIL.
    """

    label = "GPU"
    requires = ("celery.worker.components:Pool",)  # so that our threads start after the fork
    _inbox: Inbox | None = None  # there is none where the broker itself delivers what is routed

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
            refuse_options(worker, self._gpu, self._options)
            installed = installation(worker.app)
            found = found_devices() if self._is_real else None
            device = devices.find_device(str(self._gpu), installed.settings.host, found=found)
            refuse_broker(worker.app, device)
            refuse_metrics(installed.settings, device)
            self.gpu_worker = GPUWorker(installed.ledger, device, parse_pools(self._gpu_pools), worker.hostname)
            refuse_other_prefix(installed.ledger, device)
            self._flags_trouble = switch_on(installed.ledger)
            join(self.gpu_worker)
        except GPULeaseError as error:
            raise WorkerRefused(f"{type(error).__name__}: {error}") from error
        gpu_workers.set_current(self.gpu_worker)
        signals.connect()
        track_starts(worker.app, installed.settings)
        devices.show_only(device)
        consume_only(worker.app, device)
        bound_broker(worker.app, installed.settings.heartbeat_interval)
        outlast_refusals(worker.app)
        worker.consumer_cls = gpu_consumer(
            symbol_by_name(worker.consumer_cls),
            self.gpu_worker,
            on_consuming=self._serve,
            on_stopped=self._leave,
            on_asking=self._deliver,
        )

    def start(self, worker: Any) -> None:
        """Starts the threads: the pool has forked."""
        gpu_worker = self.gpu_worker
        logger.info(banner(gpu_worker.device, gpu_worker.pools))
        self._say_troubles(worker)
        gpu_worker.child_pids = lambda: child_pids(worker.pool)
        self._end_writer = EndWriter(worker.app, gpu_worker.ledger)
        gpu_worker.on_ending = self._end_writer.wake
        self._strays = Strays(gpu_worker)
        gpu_worker.on_stray = self._strays.add
        installed = installation(worker.app)
        installed.worker = worker.hostname
        installed.sends_task_events = lambda: sends_task_events(worker)
        self._teller = Teller(installed, worker.hostname)
        gpu_worker.tell_monitors = self._teller.tell
        self._pace = ReconcilePace(gpu_worker.ledger, gpu_worker.presence.instance)
        self._heartbeat = Heartbeat(gpu_worker, on_taken=self._stop_taken)
        self._neighbours = Neighbours(gpu_worker)
        device = gpu_worker.device
        dispatcher = Dispatcher(
            gpu_worker.ledger, device.id, gpu_worker.is_running, self._end_writer.wake, alias=device.alias
        )
        self._listener = Listener(
            dispatcher,
            resync=self._resync,
            on_lease_gone=self._heartbeat.beat_now,
            on_reconcile=self._pace.wake,
            on_neighbour=self._neighbours.wake,
            on_wake=gpu_worker.count_wakeup,
        )
        gpu_worker.on_open = self._listener.take_soon
        if not gpu_worker.ledger.is_broker:
            self._inbox = Inbox(gpu_worker.ledger, device.id, worker.consumer.receive_routed)
        has_companion = self._is_real and isinstance(worker.pool, InMainPool)
        self._companion = Companion(gpu_worker) if has_companion else None
        self._watch = DeviceWatch(gpu_worker) if device.uuid else None
        always = (self._strays, self._teller, self._pace, self._heartbeat, self._neighbours)
        for thread in filter(None, (*always, self._companion, self._watch)):
            thread.start()
        self._close_at_once(worker)
        if isinstance(worker.pool, PreforkPool):
            gpu_worker.on_cold = Thread(target=self._end_at_last, daemon=True).start

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Lets the pool look for dead children more often: their GPU is free.

        Celery looks when a child closes its last pipe, which is a moment too early to find it dead, and else every five
        seconds (`_event_process_exit` and `timers` in celery/concurrency/asynpool.py).
        """
        hub.call_repeatedly(CHILDREN_EVERY, worker.pool.maintain_pool)
        if self._inbox:
            self._inbox.register(hub)

    def _serve(self) -> None:
        """The worker consumes: only now may its GPU be claimed, since Celery's start takes a second or more.

        And only now it is known whether it sends events, which an end needs.
        """
        if self._listener.ident is None:  # later calls come after a loss of the broker
            if self._companion:
                self._companion.wait_until_ready()
            if self._watch:
                self._watch.wait_until_looked()
            self._listener.start()
            self._end_writer.start()
            if self._inbox:
                self._inbox.start()

    def _deliver(self) -> None:
        if self._inbox:
            self._inbox.deliver()

    def close(self, _worker: Any) -> None:
        """The worker stops: no claim from now on, and what was not started goes back; what runs keeps its lease."""
        self._listener.stop()
        self._trying(self.gpu_worker.close)

    def stop(self, _worker: Any) -> None:
        """Nothing here: the pool ends after this step, and the lease is kept until then (`_leave`)."""

    def terminate(self, worker: Any) -> None:
        """The pool is terminated after this step, and `_leave` gives back what ran.

        Where a task cannot be stopped its end is waited for, as in a warm shutdown: until then the lease is needed.
        """
        self.gpu_worker.turn_cold()
        if isinstance(worker.pool, InMainPool):
            worker.pool.stop()

    def _close_at_once(self, worker: Any) -> None:
        """No claim from the signal to stop on, however long the event loop is kept from stopping.

        That is a task which runs in it (solo), or a soft shutdown (Celery 5.5), which waits in a signal handler and
        sends no signal of its own before. A handler may take no lock: so a thread closes.
        """

        def begin_to_close(**_: Any) -> None:
            Thread(target=self.close, args=(worker,), daemon=True).start()

        def close_and_wait() -> None:
            begin_to_close()
            if not isinstance(worker.pool, InMainPool):  # what cannot be stopped is waited for anyway
                wait()

        worker_shutting_down.connect(begin_to_close, weak=False, dispatch_uid="gpulease")
        wait = getattr(worker, "wait_for_soft_shutdown", lambda: None)
        worker.wait_for_soft_shutdown = close_and_wait

    def _end_at_last(self) -> None:
        """A cold shutdown is over in time, whatever Celery's pool waits for.

        It may wait without end for the rest of a message, of a child that was killed while it wrote
        (`_flush_outqueue` in celery/concurrency/asynpool.py).
        """
        if self._has_left.wait(LONGEST_COLD_STOP):
            return
        logger.critical("Celery's pool does not end: this worker ends without it")
        children = self.gpu_worker.presence.children
        for pid, _ in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + LONGEST_LEAVE
        while not all(is_gone(*child) for child in children) and time.monotonic() < deadline:
            time.sleep(CHILDREN_EVERY)
        if all(is_gone(*child) for child in children):  # else one hangs in a driver: the lease ends with its ttl
            self._leave()
        os._exit(EX_FAILURE)

    def _leave(self) -> None:
        self._has_left.set()
        self._heartbeat.stop()
        self._heartbeat.join(LONGEST_LEAVE)
        if self._companion is not None:
            self._companion.stop()
        self._strays.leave()
        self._trying(self._say_the_last)
        self._neighbours.stop()
        self._pace.stop()
        self._end_writer.stop()
        if self._inbox:
            self._inbox.stop()
        self._teller.stop()
        if self._watch:
            self._watch.stop()

    def _say_the_last(self) -> None:
        if self.gpu_worker.is_cold:
            end_left_by(self.gpu_worker.ledger, self.gpu_worker.device.id, self.gpu_worker.presence)
        for execution in self.gpu_worker.executions():
            if execution.is_over:
                settle(self.gpu_worker, execution)
        self.gpu_worker.ledger.leave(self.gpu_worker.device.id, self.gpu_worker.presence)

    def _trying(self, tell: Callable[..., object], *what: Any) -> None:
        try:
            tell(*what)
        except LedgerUnavailable as error:
            logger.warning("Redis does not hear that this worker stops; the lease's ttl will tell: %s", error)

    def _stop_taken(self) -> None:
        logger.critical("Another worker serves GPU %s now: this one stops", self.gpu_worker.device.id)
        self._listener.stop()
        celery_state.should_stop = EX_FAILURE  # the event loop looks at it; a broadcast might not be heard

    def _resync(self) -> None:
        self.gpu_worker.keep()
        try:
            trouble = switch_on(self.gpu_worker.ledger)
        except ConfigurationError as error:
            trouble = str(error)
        if trouble and self._flags_trouble is None:
            warn_of_server(trouble)
        self._flags_trouble = trouble

    def _say_troubles(self, worker: Any) -> None:
        if self._flags_trouble:
            warn_of_server(self._flags_trouble)
        if trouble := eviction_trouble(self.gpu_worker.ledger):
            warn_of_server(trouble)
        for flag in ineffective_options() + ineffective_settings(worker.app.conf):
            logger.warning("%s has no effect with --gpu: one task at a time, from the queue of this GPU", flag)
        if isinstance(worker.pool, InMainPool):
            logger.warning(
                "Pool %s cannot stop a task: revoke(terminate=True), time limits, a lost lease and a cold shutdown let "
                "it run to its end, and what kills its process kills this worker; prefork (the default) can",
                worker.pool_cls.__module__,
            )


def sends_task_events(worker: Any) -> bool:
    """Was this worker told to, by `-E`, the setting, or a monitor?"""
    dispatcher = getattr(getattr(worker, "consumer", None), "event_dispatcher", None)
    return bool(dispatcher and dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups))


def warn_of_server(trouble: str) -> None:
    """Says what the server does, which the reconciler then need not say too."""
    logger.warning(trouble)
    has_said(trouble)
