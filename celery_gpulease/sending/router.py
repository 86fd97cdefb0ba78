"""`GPURouter`: pools for senders that know tasks by name only."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.ends import registered
from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.model import check_pool
from celery_gpulease.sending.maps import called_by
from celery_gpulease.sending.task import GPUTask

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The option by which a router tells the seam its pool: weaker than a sender's own `pool=`.
ROUTED_POOL: Final = "gpulease_pool"


class GPURouter:
    """A router for `task_routes`: the tasks that it names are held and leased.

    A pattern is a task's name, with `*`, `?` and `[…]`, or a compiled regular expression; the first that matches
    counts. A registered task that is no GPUTask is left to the other routers.

    Args:
        pools: Pattern → pool.

    Raises:
        ConfigurationError: It is no mapping, or a pool's name is none.
    """

    def __init__(self, pools: Mapping[str | re.Pattern[str], str]) -> None:
        if not hasattr(pools, "items"):
            message = f"GPURouter takes a dict of patterns and pools, such as {{'render.*': 'a100'}}, not {pools!r}"
            raise ConfigurationError(message)
        self._pools = [(_compiled(pattern), check_pool(pool)) for pattern, pool in pools.items()]

    def __call__(
        self, name: str, args: Any = (), kwargs: Any = None, _options: Any = None, task: Any = None, **_: Any
    ) -> dict[str, str] | None:
        """The route of a task, as Celery asks for it; None where it is not ours. A map goes where its calls go."""
        called = called_by(name if task is None else task.name, args or (), kwargs or {})
        if called is not None:
            name, task = called, task and registered(task.app, called)
        if task is not None and not isinstance(task, GPUTask):
            return None
        return next(({ROUTED_POOL: pool} for pattern, pool in self._pools if pattern.fullmatch(name)), None)


def _compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern)) if isinstance(pattern, str) else pattern
