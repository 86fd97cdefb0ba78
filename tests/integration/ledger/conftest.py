"""A ledger on a real server, those who act on it, and a look at the whole of it after every test."""

import pytest

from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.checks import inconsistencies
from celery_gpulease.ledger.journal import entries_backward
from celery_gpulease.settings import Settings
from tests.integration.ledger.world import World


@pytest.fixture
def key_prefix():
    return "gpu:"


@pytest.fixture
def queue_prefix():
    return ""


@pytest.fixture
def ledger(redis_url, key_prefix, queue_prefix):
    """A ledger whose leases last 30 s: none ends by itself during a test."""
    made = Ledger(Settings(redis_url=redis_url, key_prefix=key_prefix), queue_prefix)
    yield made
    made.client.close()


@pytest.fixture
def world(ledger):
    """Senders, workers and strangers."""
    made = World(ledger)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def assert_ledger_consistent(request):
    """After every test: the ledger's invariants, and an entry of the journal that has a task's id names the task."""
    ledger = request.getfixturevalue("ledger") if "ledger" in request.fixturenames else None
    yield
    if ledger is not None:
        assert inconsistencies(ledger) == []
        assert [one for one in entries_backward(ledger) if one.task_id and not one.task] == []
