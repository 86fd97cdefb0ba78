"""Messages of GPU tasks that came to a worker past the ledger: sent by hand, or by a sender without GPULease."""

from __future__ import annotations

import uuid
from typing import Any, Final

from celery.utils.log import get_logger
from celery.worker.request import Request
from celery.worker.state import task_ready

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.installed import installation
from celery_gpulease.model import DEFAULT_POOL
from celery_gpulease.sending.destination import Destination
from celery_gpulease.sending.holding import Finished, held

logger = get_logger(__name__)


#: What a transport puts among a message's properties, and the message says elsewhere too.
_OF_TRANSPORTS: Final = ("delivery_info", "application_headers", "content_type", "content_encoding")


class StrayRequest(Request):
    """The request of a GPU task on a worker without `--gpu`: it is held instead of run."""

    def revoked(self) -> bool:
        """Celery asks this before it runs a request: the place to hold it."""
        if super().revoked():
            return True
        task_ready(self)
        try:
            hold_again(self)
        except LedgerUnavailable as error:
            logger.warning("%s goes back to its queue: %s", self, error)
            self.reject(requeue=True)
        else:
            self.acknowledge()
        return True


def hold_again(request: Any, pin: str = "") -> None:
    """Holds the message of a request as its sender should have.

    Args:
        request: Celery's.
        pin: The GPU for a task that is no GPU task: the one into whose queue it was sent.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    message, pool = request.message, getattr(request.task, "pool", DEFAULT_POOL)
    properties = {name: value for name, value in (message.properties or {}).items() if name not in _OF_TRANSPORTS}
    headers = {name: value for name, value in message.headers.items() if name != "compression"}  # kombu has undone it
    finished = Finished(message.body, message.content_type, message.content_encoding, headers, properties)
    # the same for a message that is delivered again, because HOLD's reply was lost
    ticket = uuid.uuid5(uuid.NAMESPACE_OID, f"{request.id}/{message.delivery_tag}").hex
    where = Destination(pool, pin)
    installation(request.app).ledger.hold(held(request.app, request.task.name, finished, where, ticket))
    logger.warning("%s came past the ledger, and is held for a GPU", request)
