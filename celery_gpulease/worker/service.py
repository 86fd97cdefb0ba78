"""All that a GPU's worker runs beside Celery's pool: it starts after the fork, and ends when the pool is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger
from celery.worker import state as celery_state

from celery_gpulease.dispatch.dispatcher import Dispatcher
from celery_gpulease.dispatch.ending import EndWriter
from celery_gpulease.dispatch.listener import Listener
from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.installed import Installation, installation
from celery_gpulease.reconcile.pace import ReconcilePace
from celery_gpulease.worker.companion import Companion
from celery_gpulease.worker.device_watch import DeviceWatch
from celery_gpulease.worker.heartbeat import Heartbeat, settle
from celery_gpulease.worker.inbox import Inbox
from celery_gpulease.worker.leftovers import end_left_by
from celery_gpulease.worker.neighbours import Neighbours
from celery_gpulease.worker.pools import InMainPool
from celery_gpulease.worker.processes import child_pids
from celery_gpulease.worker.strays import Strays
from celery_gpulease.worker.telling import Teller

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.worker.gpu_worker import GPUWorker
    from celery_gpulease.worker.troubles import Flags

logger = get_logger(__name__)

#: Seconds that a worker that stops waits for its heartbeat's last word, and for the end that it writes.
LONGEST_LEAVE: Final = 5.0


class Service:
    """The threads of one GPU's worker, in the order of its life: start, serve, close, leave.

    Args:
        worker: Celery's; its pool has forked.
        gpu_worker: What it answers for.
        flags: The server's notification flags, looked at again with each new connection.
        is_guarded: Against a task that holds the GIL, where it runs in this process.
    """

    _inbox: Inbox | None = None  # there is none where the broker itself delivers what is routed
    _companion: Companion | None = None  # prefork's main process is never kept from its heartbeat
    _watch: DeviceWatch | None = None  # without NVML there is nothing to look at

    def __init__(self, worker: Any, gpu_worker: GPUWorker, flags: Flags, *, is_guarded: bool) -> None:
        self._gpu_worker, self._flags = gpu_worker, flags
        installed = installation(worker.app)
        self._end_writer = EndWriter(worker.app, gpu_worker.ledger)
        self._strays = Strays(gpu_worker)
        self._teller = Teller(installed, worker.hostname)
        self._pace = ReconcilePace(gpu_worker.ledger, gpu_worker.presence.instance)
        self._heartbeat = Heartbeat(gpu_worker, on_taken=self._stop_taken)
        self._neighbours = Neighbours(gpu_worker)
        self._listener = self._make_listener()
        if not gpu_worker.ledger.is_broker:
            self._inbox = Inbox(gpu_worker.ledger, gpu_worker.device.id, worker.consumer.receive_routed)
        if is_guarded and isinstance(worker.pool, InMainPool):
            self._companion = Companion(gpu_worker)
        if gpu_worker.device.uuid:
            self._watch = DeviceWatch(gpu_worker)
        self._connect(worker, installed)

    def _make_listener(self) -> Listener:
        gpu_worker, device = self._gpu_worker, self._gpu_worker.device
        dispatcher = Dispatcher(
            gpu_worker.ledger, device.id, gpu_worker.is_running, self._end_writer.wake, alias=device.alias
        )
        return Listener(
            dispatcher,
            resync=self._resync,
            on_lease_gone=self._heartbeat.beat_now,
            on_reconcile=self._pace.wake,
            on_neighbour=self._neighbours.wake,
            on_wake=gpu_worker.count_wakeup,
        )

    def _connect(self, worker: Any, installed: Installation) -> None:
        """What happens to the worker reaches the thread that it concerns."""
        gpu_worker = self._gpu_worker
        gpu_worker.child_pids = lambda: child_pids(worker.pool)
        gpu_worker.on_ending = self._end_writer.wake
        gpu_worker.on_stray = self._strays.add
        gpu_worker.on_open = self._listener.take_soon
        gpu_worker.tell_monitors = self._teller.tell
        installed.worker = worker.hostname
        installed.sends_task_events = lambda: sends_task_events(worker)

    def start(self) -> None:
        """Starts all that is needed before a task may come."""
        always = (self._strays, self._teller, self._pace, self._heartbeat, self._neighbours)
        for thread in filter(None, (*always, self._companion, self._watch)):
            thread.start()

    def register(self, hub: Any) -> None:
        """What is routed wakes Celery's event loop."""
        if self._inbox:
            self._inbox.register(hub)

    def serve(self) -> None:
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

    def deliver(self) -> None:
        """Celery asks for messages: what was routed meanwhile."""
        if self._inbox:
            self._inbox.deliver()

    def close(self) -> None:
        """No claim from now on, and what was not started goes back; what runs keeps its lease."""
        self._listener.stop()
        self._trying(self._gpu_worker.close)

    def leave(self) -> None:
        """The pool is gone: says so to the ledger, which gives back what ran, and ends every thread."""
        self._heartbeat.stop()
        self._heartbeat.join(LONGEST_LEAVE)
        if self._companion:
            self._companion.stop()
        self._strays.leave()
        self._trying(self._say_the_last)
        for thread in (self._neighbours, self._pace, self._end_writer, self._inbox, self._teller, self._watch):
            if thread:
                thread.stop()
        if self._end_writer.ident:  # nobody else writes the end that it is at, for a while
            self._end_writer.join(LONGEST_LEAVE)

    def _say_the_last(self) -> None:
        gpu_worker = self._gpu_worker
        if gpu_worker.is_cold:
            end_left_by(gpu_worker.ledger, gpu_worker.device.id, gpu_worker.presence)
        for execution in gpu_worker.executions():
            if execution.is_over:
                settle(gpu_worker, execution)
        gpu_worker.ledger.leave(gpu_worker.device.id, gpu_worker.presence)

    def _trying(self, tell: Callable[[], object]) -> None:
        try:
            tell()
        except LedgerUnavailable as error:
            logger.warning("Redis does not hear that this worker stops; the lease's ttl will tell: %s", error)

    def _stop_taken(self) -> None:
        logger.critical("Another worker serves GPU %s now: this one stops", self._gpu_worker.device.id)
        self._listener.stop()
        celery_state.should_stop = EX_FAILURE  # the event loop looks at it; a broadcast might not be heard

    def _resync(self) -> None:
        self._gpu_worker.keep()
        self._flags.resync()


def sends_task_events(worker: Any) -> bool:
    """Was this worker told to, by `-E`, the setting, or a monitor?"""
    dispatcher = getattr(getattr(worker, "consumer", None), "event_dispatcher", None)
    return bool(dispatcher and dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups))
