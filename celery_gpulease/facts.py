"""What the log's line of a life event says to programs: the `extra` that any formatter of JSON shows."""

from __future__ import annotations


def facts(*, task_id: str = "", gpu: str = "", pool: str = "", token: str = "") -> dict[str, str]:
    """The four, for `extra`; empty is what the event has not, or is not known where it is logged."""
    return {"task_id": task_id, "gpu": gpu, "pool": pool, "token": token}
