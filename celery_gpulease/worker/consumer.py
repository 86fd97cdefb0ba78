"""Celery's consumer on a GPU's worker: our requests, and the ends of messages that never become one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.imports import symbol_by_name

from celery_gpulease.model import HEADER, Claim
from celery_gpulease.worker.request import gpu_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.worker.post import Post


def gpu_consumer(base: type, post: Post, on_stopped: Callable[[], None]) -> type:
    """The consumer class of a GPU's worker, over Celery's or the user's own (`worker_consumer`).

    Args:
        base: That class.
        post: What this worker answers for.
        on_stopped: Called when the pool has ended, in every kind of shutdown.
    """

    class GPUConsumer(base):
        def update_strategies(self) -> None:
            """Every task gets our request, before Celery builds the strategies that use it."""
            for task in self.app.tasks.values():
                task.Request = gpu_request(symbol_by_name(task.Request), post, self.pool)
            super().update_strategies()

        def on_unknown_message(self, body: Any, message: Any) -> None:
            super().on_unknown_message(body, message)
            self._end_ticket(message)

        def on_unknown_task(self, body: Any, message: Any, exc: Any) -> None:
            super().on_unknown_task(body, message, exc)
            self._end_ticket(message)

        def on_invalid_task(self, body: Any, message: Any, exc: Any) -> None:
            super().on_invalid_task(body, message, exc)
            self._end_ticket(message)

        def on_decode_error(self, message: Any, exc: Any) -> None:
            super().on_decode_error(message, exc)
            self._end_ticket(message)

        def cancel_active_requests(self) -> None:
            """A cold shutdown ends what runs; the loss of the broker's connection, which asks each request, does not."""
            post.is_cold = True
            super().cancel_active_requests()

        def bucket_for_task(self, _task: Any) -> None:
            """No bucket for Celery, which would park a request that holds a lease: `gpu_request` looks at ours."""

        def shutdown(self) -> None:
            """Celery calls this last, when the pool has ended, warm or cold (`WorkController.on_stopped`)."""
            super().shutdown()
            on_stopped()

        def _end_ticket(self, message: Any) -> None:
            headers = message.headers if isinstance(message.headers, dict) else {}
            claim = Claim.from_header(headers.get(HEADER))
            if claim is not None:
                post.ledger.release(claim)

    return GPUConsumer
