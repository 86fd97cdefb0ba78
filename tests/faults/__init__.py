"""Whatever breaks, each accepted task has one end and no GPU two tasks. What can break is in `faults.py`."""

from tests.faults import breaking_processes, breaking_rabbitmq, breaking_redis

__all__ = ["breaking_processes", "breaking_rabbitmq", "breaking_redis"]
