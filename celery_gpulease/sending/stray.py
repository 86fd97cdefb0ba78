"""Messages of GPU tasks that came to a worker past the ledger: sent by hand, or by a sender without GPULease."""

from __future__ import annotations

import uuid
from typing import Any

from celery.utils.log import get_logger
from celery.worker.request import Request
from celery.worker.state import task_ready

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.model import DEFAULT_POOL
from celery_gpulease.sending.destination import Destination
from celery_gpulease.sending.holding import Finished, held
from celery_gpulease.sending.maps import road_of
from celery_gpulease.sending.task import GPUTask

logger = get_logger(__name__)


class StrayRequest(Request):
    """The request of a GPU task, or of a map of one, on a worker without `--gpu`: it is held instead of run."""

    def revoked(self) -> bool:
        """Celery asks this before it runs a request: the place to hold it."""
        if super().revoked():
            return True
        if not isinstance(road_of(self), GPUTask):
            return False
        task_ready(self)
        try:
            hold_again(self)
        except LedgerUnavailable as error:
            logger.warning("%s goes back to its queue: %s", self, error)
            self.reject(requeue=True)
        else:
            self.acknowledge()
        return True


def hold_again(request: Any, gpu: str = "") -> None:
    """Holds the message of a request as its sender should have.

    Args:
        request: Celery's.
        gpu: Into whose queue it was sent: a task that is no GPU task is pinned there.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    message, task = request.message, road_of(request)
    properties = {name: value for name, value in (message.properties or {}).items() if name != "delivery_info"}
    headers = {name: value for name, value in message.headers.items() if name != "compression"}  # kombu has undone it
    finished = Finished(message.body, message.content_type, message.content_encoding, headers, properties)
    # the same for a message that is delivered again, because HOLD's reply was lost
    ticket = uuid.uuid5(uuid.NAMESPACE_OID, f"{request.id}/{message.delivery_tag}").hex
    where = Destination(getattr(task, "pool", DEFAULT_POOL), "" if isinstance(task, GPUTask) else gpu)
    installation(request.app).ledger.hold(held(request.app, request.task.name, finished, where, ticket))
    logger.warning("%s came past the ledger, and is held for a GPU", request)
