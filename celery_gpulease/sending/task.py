"""`GPUTask`: the base class of tasks that run on a leased GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task
from celery.exceptions import Ignore
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from celery_gpulease import lease as leases
from celery_gpulease.ends import repeat_end
from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.model import DEFAULT_POOL, check_pool

if TYPE_CHECKING:
    from celery_gpulease.model import GPU

logger = get_logger(__name__)


class LeasedTask(Task):
    """A task whose runs may be under a lease.

    Attributes:
        Request: What holds it on a worker that serves no GPU.
    """

    abstract = True
    Request = "celery_gpulease.sending.stray:StrayRequest"

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Sends the task, as Celery does; besides its options takes `pool` and `gpu`.

        Raises:
            ConfigurationError: `GPULease(app)` was not called, or a setting is wrong.
            LedgerUnavailable: Redis does not answer.
        """
        installed = installation(self.app)
        try:
            return super().apply_async(*args, **options)
        except LedgerUnavailable:
            raise
        except (OperationalError, RuntimeError) as error:
            # a result backend on the same Redis is asked first (Celery.send_task), and fails in its own words
            if self.app.conf.task_always_eager or installed.ledger.is_reachable():
                raise
            raise LedgerUnavailable(str(error)) from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the body; a run that was lost meanwhile ends in Ignore, so that nothing of it is stored."""
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        # not super(): outside a worker Task.__call__ would push an empty request (celery/app/task.py)
        self._refuse_to_begin_late()
        self._refuse_what_has_ended()
        try:
            result = self.run(*args, **kwargs)
        except Exception:
            self._drop_if_lost()
            raise
        self._drop_if_lost()
        return result

    def _refuse_to_begin_late(self) -> None:
        """A run that began too late: main has given it up, and it goes on elsewhere."""
        run = self._run()
        if run and run.must_not_begin():
            self._ignore("it began after it was given up: its task runs, or will run, elsewhere")

    def _refuse_what_has_ended(self) -> None:
        """An earlier run stored its end, and its worker died before the lease was released."""
        run = self._run()
        if run and run.stored:
            repeat_end(self.backend, run.stored, self.request)
            self._ignore(f"an earlier run has stored its end: {run.stored['status']}")

    def _drop_if_lost(self) -> None:
        run = self._run()
        if run and run.must_be_dropped():
            self._ignore("it was lost: its task runs, or will run, elsewhere")

    def _ignore(self, why: str) -> NoReturn:
        """Celery would not say why."""
        message = f"This run of {self.name}[{self.request.id}] stores nothing: {why}"
        logger.info(message)
        raise Ignore(message)

    def _run(self) -> leases.Run | None:
        """Where it is called as a function it has none, but for a map, whose run is its calls' run."""
        request = self.request
        if request.called_directly:
            return leases.calling(self.name)
        return None if request.is_eager else leases.current(request.id)


class GPUTask(LeasedTask):
    """A task that waits for a free GPU of its pool and runs there, under a lease.

    Attributes:
        pool: Which GPUs may run it: those whose worker was started with this pool.
    """

    abstract = True
    pool = DEFAULT_POOL
    acks_late = True

    @property
    def gpu(self) -> GPU:
        """The GPU that this run holds; its fields are None where there is no lease."""
        run = self._run()
        return run.gpu if run else leases.NO_GPU

    @property
    def lease(self) -> leases.Lease:
        """The lease of this run; it does nothing where there is none."""
        run = self._run()
        return run.lease if run else leases.no_lease()

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Checks the pool's name.

        Raises:
            ConfigurationError: It is none.
        """
        super().on_bound(app)
        check_pool(cls.pool)
