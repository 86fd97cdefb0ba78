"""The world of the fault tests, which serves here too: workers, tasks, and a journal of what ran."""

from tests.faults.conftest import world

__all__ = ["world"]
