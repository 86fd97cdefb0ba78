"""`GPULease(app)`: the one place where everything is wired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.imports import symbol_by_name

from celery_gpulease.installed import install, installation
from celery_gpulease.operate.control import controlling, speak_when_purging
from celery_gpulease.reconcile.beat import add_to_schedule, reconcile_now
from celery_gpulease.sending.holding import holding
from celery_gpulease.sending.leased_maps import lease_maps
from celery_gpulease.worker.options import add_options

if TYPE_CHECKING:
    from celery_gpulease.ledger import Ledger
    from celery_gpulease.settings import Settings


class GPULease:
    """Makes a Celery app know which GPU is free now. Calling it twice does no harm.

    Args:
        app: The app; its settings are read when they are first needed.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        if not install(app, reconcile=lambda: reconcile_now(app)):
            return
        app.amqp_cls = holding(symbol_by_name(app.amqp_cls))
        app.control_cls = controlling(symbol_by_name(app.control_cls))
        for cached in ("amqp", "control"):  # from before: it would send, or revoke, past us
            app.__dict__.pop(cached, None)
        lease_maps(app)
        speak_when_purging(app)
        add_options(app)
        for step in ("bootsteps:GPUStep", "metrics:MetricsStep"):  # by name: a producer needs none of it
            app.steps["worker"].add(f"celery_gpulease.worker.{step}")
        add_to_schedule(app)

    @property
    def settings(self) -> Settings:
        """The settings, checked."""
        return installation(self.app).settings

    @property
    def ledger(self) -> Ledger:
        """The ledger of this app."""
        return installation(self.app).ledger
