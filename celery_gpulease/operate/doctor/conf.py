"""The configuration: what cannot work, and what fights the leases."""

from __future__ import annotations

import warnings
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, Final

from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend

from celery_gpulease.contradictions import refuse_contradictions
from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.installed import installation
from celery_gpulease.operate.doctor.finding import Finding, note
from celery_gpulease.sending.task import GPUTask
from celery_gpulease.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Kombu's defaults, by transport: seconds.
VISIBILITY: Final = {"redis": 3600, "rediss": 3600, "sentinel": 3600, "sqs": 1800}
#: Names in one sentence.
SHOWN: Final = 5


def modules(app: Any) -> Iterator[Finding]:
    """What the project is made of: its tasks are looked at below."""
    try:
        app.loader.import_default_modules()
    except Exception as error:  # noqa: BLE001  whatever the project's code raises
        yield Finding(
            f"the project's modules cannot be imported: {type(error).__name__}: {error}",
            "correct what `imports`, `include` or autodiscover_tasks name: a worker would not start",
        )


def warned_of(app: Any) -> Iterator[Finding]:
    """What a worker would refuse, or warn of: each message names the setting and the cure."""
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            installation(app)
            refuse_contradictions(app.conf)
            read_settings(app.conf)
    except ConfigurationError as error:
        yield Finding(str(error))
    for one in caught:
        yield Finding(str(one.message))


def eager(app: Any) -> Iterator[Finding]:
    """Tasks that run where they are sent."""
    if app.conf.task_always_eager:
        yield Finding(
            "task_always_eager: GPU tasks run at once in the process that sends them, without a lease",
            "leave task_always_eager out, but in tests",
        )


def named_queues(app: Any) -> Iterator[Finding]:
    """Queues that GPU tasks name in vain."""
    queues = {name: getattr_static(task, "queue", None) for name, task in gpu_tasks(app).items()}
    named = sorted(f"{name} ({queue})" for name, queue in queues.items() if isinstance(queue, str))  # Celery's is none
    if named:
        yield Finding(
            f"GPU tasks go to no queue, and these name one, which is ignored: {some(named)}",
            "name a pool instead: @app.task(base=GPUTask, pool=…)",
        )
    if app.conf.worker_direct:
        yield note("worker_direct has no effect on a GPU's worker, which consumes one queue")


def time_limits(app: Any) -> Iterator[Finding]:
    """GPU tasks that could keep a GPU for ever."""
    endless = [] if app.conf.task_time_limit else sorted(n for n, t in gpu_tasks(app).items() if not t.time_limit)
    if endless:
        yield note(f"a task that hangs keeps its GPU: there is no time_limit for {some(endless)}")


def visibility_timeout(app: Any) -> Iterator[Finding]:
    """Plain tasks that the broker gives out again while they run. A GPU task is not concerned."""
    scheme = str(app.conf.broker_read_url or "").partition(":")[0].partition("+")[0]
    lasts = app.conf.broker_transport_options.get("visibility_timeout", VISIBILITY.get(scheme))
    if lasts is None:
        return
    longer = sorted(
        f"{name} ({task.time_limit or app.conf.task_time_limit:g} s)"
        for name, task in app.tasks.items()
        if task.acks_late
        and not isinstance(task, GPUTask)
        and (task.time_limit or app.conf.task_time_limit or 0) > lasts
    )
    if longer:
        yield Finding(
            f"the broker gives a task out again after {lasts:g} s, also while it runs, and these plain tasks, which "
            f"are acknowledged late, may run for longer: {some(longer)}",
            "raise 'visibility_timeout' in broker_transport_options above the longest time limit (a GPU task needs no "
            "such thing: its ledger alone gives it out again)",
        )


def results(app: Any) -> Iterator[Finding]:
    """What becomes of the ends of tasks."""
    if isinstance(app.backend, DisabledBackend):
        yield note("there is no result_backend: how a task has ended is told by the journal and the log only")
    elif isinstance(app.backend, RPCBackend):
        yield note(
            "result_backend is rpc://, which cannot be asked whether the task of a dead worker had ended: it runs again"
        )


def remote_control(app: Any) -> Iterator[Finding]:
    """Orders that reach no worker."""
    if not app.conf.worker_enable_remote_control:
        yield note(
            "worker_enable_remote_control is off: revoke(terminate=True) stops nothing that runs, and `celery inspect` "
            "and `celery control` reach no worker; what is held is cancelled all the same"
        )


def gpu_tasks(app: Any) -> dict[str, Any]:
    """The GPU tasks that this process knows, by name."""
    return {name: task for name, task in app.tasks.items() if isinstance(task, GPUTask)}


def some(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest
