"""An app's map and starmap tasks, made such that they may run under a lease; which of their messages are held."""

from __future__ import annotations

from typing import Any

from celery_gpulease.sending.destination import goes_to_a_gpu
from celery_gpulease.sending.maps import MAPS, road_of
from celery_gpulease.sending.task import LeasedTask


class LeasedMap(LeasedTask):
    """A map, which is held where it calls a GPU task; where it calls another it fails in Celery's words only."""

    abstract = True

    def _is_held(self, args: Any = None, kwargs: Any = None, *_: Any, **options: Any) -> bool:
        return goes_to_a_gpu(self.app, road_of(self.name, args, kwargs), options.get("headers") or {}, options)


def lease_maps(app: Any) -> None:
    """Replaces an app's map and starmap, as soon as it has them."""
    app.on_after_finalize.connect(_replace_maps, sender=app, dispatch_uid="gpulease")
    if app.finalized:
        _replace_maps(app)


def _replace_maps(sender: Any, **_: Any) -> None:
    for name in MAPS:
        celerys = type(sender.tasks[name])
        if not issubclass(celerys, LeasedTask):  # the app's task class may be GPUTask
            sender.tasks.register(type(celerys.__name__, (LeasedMap, celerys), {"__module__": celerys.__module__}))
            sender.tasks[name].bind(sender)
