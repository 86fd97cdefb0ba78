"""Celery's own integration tests, with workers outside: a pytest plugin, fixtures for their conftest, the workers' app.

`OWN_ROAD` says which road the tasks take: "plain" (Celery alone) or "gpu" (GPUTask is the app's task class).
"""

import json
import os
from pathlib import Path

import pytest
from celery import Task
from celery.app.control import Control
from celery.contrib.testing.app import TestApp

from celery_gpulease import GPULease, GPUTask

WORKERS = 4
ROAD = os.environ["OWN_ROAD"]
#: Of one test, whatever it asks for itself.
TIMEOUT = int(os.environ["OWN_TIMEOUT"])


class QuickControl(Control):
    """Waits for no more answers once all workers have answered: each test asks them at its end."""

    def broadcast(self, command, arguments=None, destination=None, limit=None, **options):
        if destination is None and limit is None:
            limit = WORKERS
        return super().broadcast(command, arguments, destination, limit=limit, **options)


TaskOfThisRoad = {"plain": Task, "gpu": GPUTask}[ROAD]
CLASSES = {"control": QuickControl, "task_cls": TaskOfThisRoad}


def on_its_road(app):
    """The app, as its project would set it up."""
    if ROAD == "gpu":
        GPULease(app)
    return app


# in the process of the tests


@pytest.fixture(scope="session")
def celery_parameters():
    return CLASSES


@pytest.fixture
def celery_app(celery_app):
    return on_its_road(celery_app)


@pytest.fixture(scope="session")
def celery_session_app(celery_session_app):
    return on_its_road(celery_session_app)


@pytest.fixture(scope="session")
def celery_session_worker():
    """The workers run outside."""


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.timeout(TIMEOUT), append=False)


def pytest_runtest_logreport(report):
    with Path(os.environ["OWN_OUTCOMES"]).open("a") as outcomes:
        outcomes.write(json.dumps([report.nodeid, report.outcome]) + "\n")


# in the process of a worker


def __getattr__(name):
    """`celery -A celerys_own`: made only for a worker, after the tests' modules can be imported."""
    if name != "app":
        raise AttributeError(name)
    from t.integration import tasks  # noqa: PLC0415

    config = {
        "broker_url": os.environ["TEST_BROKER"],
        "result_backend": os.environ["TEST_BACKEND"],
        "result_extended": True,
        "task_create_missing_queues": False,
    }
    app = on_its_road(TestApp(set_as_current=True, enable_logging=True, config=config, **CLASSES))
    app.register_task(tasks.ClassBasedAutoRetryTask)
    return app
