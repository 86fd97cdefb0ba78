"""`GPUTask`: the base class of tasks that run on a leased GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task
from celery.exceptions import Ignore
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from celery_gpulease import lease as leases
from celery_gpulease.ends import has_outlasted_body_claim, repeat_end
from celery_gpulease.exceptions import ConfigurationError, LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.model import DEFAULT_POOL, check_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.model import GPU

logger = get_logger(__name__)


def _guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    """A task's `__call__`, in which a run that was lost meanwhile ends in Ignore, so that nothing of it is stored."""

    def guarded(self: LeasedTask, *args: Any, **kwargs: Any) -> Any:
        run = self._run()
        if run is None or run.is_guarded:
            return call(self, *args, **kwargs)
        run.is_guarded = True
        self._refuse_to_begin_late(run)
        self._refuse_what_has_ended(run)
        try:
            result = call(self, *args, **kwargs)
        except Exception:
            self._drop_if_lost(run)
            raise
        self._drop_if_lost(run)
        return result

    guarded.guards = call  # type: ignore[attr-defined]
    guarded.__doc__ = call.__doc__  # `functools.wraps` would show Task.add_around the way past us
    return guarded


def _tell_where_away(ledger: Ledger, error: Exception) -> None:
    """A result backend on the same Redis is asked first (Celery.send_task), and says that the app must be restarted.

    Raises:
        LedgerUnavailable: The ledger's Redis does not answer either.
    """
    try:
        ledger.ping()
    except LedgerUnavailable as away:
        message = (
            f"{str(away).rstrip('.')}. This task was not held: Celery asks the result backend first, and gave up. Send "
            "it again when Redis is back; nothing needs to be restarted"
        )
        raise LedgerUnavailable(message) from error


class LeasedTask(Task):
    """A task whose runs may be under a lease.

    Attributes:
        Request: What holds it on a worker that serves no GPU.
    """

    abstract = True
    Request: str | type = "celery_gpulease.sending.stray:StrayRequest"

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
            if self._is_held(*args, **options) and not self.app.conf.task_always_eager:
                _tell_where_away(installed.ledger, error)
            raise

    def _is_held(self, *_: Any, **__: Any) -> bool:
        """Is a message with these arguments of `apply_async` the ledger's?"""
        return True

    def __init_subclass__(cls, **options: Any) -> None:
        """Guards a `__call__` of the user's own, whether it calls ours or not."""
        super().__init_subclass__(**options)
        if not hasattr(cls.__call__, "guards"):
            cls.__call__ = _guarded(cls.__call__)  # type: ignore[method-assign]

    @_guarded
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the body, or the `__call__` of a class that stands beside this one."""
        beside = super().__call__
        # in a run not Task's: outside a worker it would push an empty request (celery/app/task.py)
        is_run = beside.__func__ is Task.__call__ and not self.request.called_directly
        return self.run(*args, **kwargs) if is_run else beside(*args, **kwargs)

    def _refuse_to_begin_late(self, run: leases.Run) -> None:
        """A run that began too late: main has given it up, and it goes on elsewhere."""
        if run.must_not_begin():
            self._ignore("it began after it was given up: its task runs, or will run, elsewhere")

    def _refuse_what_has_ended(self, run: leases.Run) -> None:
        """An earlier run stored its end, and its worker died before the lease was released."""
        if run.stored:
            repeat_end(self.backend, run.stored, self.request)
            if has_outlasted_body_claim(self.backend, self.request):
                repeat_end(self.backend, run.stored, self.request)
            self._ignore(f"an earlier run has stored its end: {run.stored['status']}")

    def _drop_if_lost(self, run: leases.Run) -> None:
        if run.must_be_dropped():
            self._ignore("it was lost: its task runs, or will run, elsewhere")

    def _ignore(self, why: str) -> NoReturn:
        """Celery would not say why."""
        message = f"This run of {self.name}[{self.request.id}] stores nothing: {why}"
        logger.info(message)
        raise Ignore(message)

    def _run(self) -> leases.Run | None:
        """Called as a function it has none, but where a map calls it: then the map's."""
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
        """Checks the pool's name; Celery binds every task when the first one is used.

        Raises:
            ConfigurationError: It is none.
        """
        super().on_bound(app)
        try:
            check_pool(cls.pool)
        except ConfigurationError as error:
            message = f"task {cls.name}: {error}"
            raise ConfigurationError(message) from None

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """As each task of a Django project has it: `delay`, once the transaction is committed."""
        self._djangos().delay_on_commit(self, *args, **kwargs)

    def apply_async_on_commit(self, *args: Any, **options: Any) -> None:
        """The same of `apply_async`."""
        self._djangos().apply_async_on_commit(self, *args, **options)

    @staticmethod
    def _djangos() -> Any:
        return symbol_by_name("celery.contrib.django.task:DjangoTask")
