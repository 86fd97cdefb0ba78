"""`celery worker --gpu`: the options, and what they make of Celery's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from celery import signals
from celery.utils.imports import symbol_by_name
from celery.utils.nodenames import default_nodename
from click.core import ParameterSource

from celery_gpulease.installed import installation
from celery_gpulease.model import DEFAULT_POOL, check_pool

if TYPE_CHECKING:
    from celery_gpulease.model import Device

GROUP = "GPU Options"
REMOTE = "celery_gpulease.worker.remote:add_remote_commands"


def add_options(app: Any) -> None:
    """Adds our options to `celery worker`; Celery reads them when the app has been imported."""
    gpu = "Serve this GPU of this host (an index; with NVML also a UUID): only its queue, one task at a time."
    pools = f"The pools that this GPU serves, in order of preference (default: {DEFAULT_POOL})."
    app.user_options["worker"] |= {_option("--gpu", gpu), _option("--gpu-pools", pools)}
    signals.worker_init.connect(_worker_init, dispatch_uid="gpulease")
    context = click.get_current_context(silent=True)
    if context is not None and context.invoked_subcommand in ("inspect", "control"):  # which look for a command's name
        symbol_by_name(REMOTE)()


def _option(name: str, about: str) -> click.Option:
    """As Celery's `CeleryOption`, whose module would cost every producer's import 20 ms."""
    option = click.Option((name,), help=about)
    option.help_group = GROUP  # type: ignore[attr-defined]
    return option


def _worker_init(sender: Any, **_: Any) -> None:
    symbol_by_name("celery_gpulease.worker.commands:add_commands")()
    symbol_by_name(REMOTE)()
    one_task_at_a_time(sender)


def parse_pools(text: str | None) -> tuple[str, ...]:
    """The pools that `--gpu-pools` names, each once.

    Raises:
        ConfigurationError: A name is none.
    """
    # an empty text, as of a variable that is not set, must not give the GPU to everybody
    named = DEFAULT_POOL if text is None else text
    return tuple(dict.fromkeys(check_pool(one.strip()) for one in named.split(",")))


def one_task_at_a_time(worker: Any) -> None:
    """Sets concurrency, prefetching, the pool and the node's name, before Celery resolves them (`worker_init`).

    A bootstep would be too late: Celery's Pool step is made before it.
    """
    gpu = worker.options.get("gpu")
    if gpu is None:
        return
    worker.concurrency = worker.prefetch_multiplier = 1
    worker.pool_cls = symbol_by_name("celery_gpulease.worker.pools:gpu_pool")(worker.pool_cls)
    if worker.hostname == default_nodename(None):
        index = symbol_by_name("celery_gpulease.worker.nvml:index_of")(str(gpu))
        worker.hostname = f"gpu{index}@{installation(worker.app).settings.host}"


def ineffective_options() -> list[str]:
    """Those of Celery's options that were given and have no effect beside `--gpu`."""
    context = click.get_current_context(silent=True)
    if context is None:
        return []
    names = {
        "queues": "-Q",
        "exclude_queues": "-X",
        "concurrency": "-c",
        "prefetch_multiplier": "--prefetch-multiplier",
    }
    return [flag for name, flag in names.items() if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]


def ineffective_settings(conf: Any) -> list[str]:
    """Those of Celery's settings that ask for more queues than a GPU's own."""
    return ["worker_direct"] if conf.worker_direct else []


def banner(device: Device, pools: tuple[str, ...]) -> str:
    """What the worker says when it serves."""
    model = f", {device.model}" if device.model else ""
    return f"Serving GPU {device.id} (index {device.index}{model}) for the pools {', '.join(pools)}"
