"""Task classes of the project's own."""

import os

from celery import Task
from celery.worker.request import Request

from .journal import note

if os.environ["GROWN_GPU"] == "yes":
    from celery_gpulease import GPUTask as Heavy
else:
    Heavy = Task


class ProjectTask(Task):
    """The base of every task (`task_cls`)."""

    abstract = True
    owner = "somebody"


class OwnRequest(Request):
    """Counts what comes."""

    def on_accepted(self, pid, time_accepted):
        """The pool has it."""
        note("accepted", self.id)
        return super().on_accepted(pid, time_accepted)


class Tracked(Heavy):
    """Hooks everywhere; `__call__` is as Celery's guide once had it, without super."""

    abstract = True
    autoretry_for = (ConnectionError,)
    retry_backoff = True
    retry_jitter = False
    max_retries = 1

    def __call__(self, *args, **kwargs):
        """Runs it."""
        note("call", self.request.id)
        return self.run(*args, **kwargs)

    def before_start(self, task_id, args, kwargs):
        """Before it."""
        note("before_start", task_id, args=repr(args), kwargs=repr(kwargs))

    def on_success(self, retval, task_id, args, kwargs):
        """It went well."""
        note("on_success", task_id, value=repr(retval))

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        """It runs again."""
        note("on_retry", task_id, error=type(exc).__name__)

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        """It went wrong."""
        note("on_failure", task_id, error=repr(exc))

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        """It is over."""
        note("after_return", task_id, status=status)


class Timed:
    """A mixin that knows nothing of Celery."""

    def __call__(self, *args, **kwargs):
        """Around it."""
        note("timed", self.request.id)
        return super().__call__(*args, **kwargs)


class TimedTask(Task):
    """One that does."""

    abstract = True

    def __call__(self, *args, **kwargs):
        """Around it."""
        note("timed task", self.request.id)
        return super().__call__(*args, **kwargs)


class Mixed(Timed, Heavy):
    """The mixin before."""

    abstract = True


class Beside(*((TimedTask,) if Heavy is Task else (Heavy, TimedTask))):
    """The mixin after."""

    abstract = True
