"""Whatever happens in whatever order, the ledger's invariants hold, and every accepted task reaches its end."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.ledger.machine import LedgerMachine

UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def run_machine(url, scripts=None, **options):
    """Hypothesis looks for a sequence of steps after which something does not hold."""
    machine = type("LedgerMachine", (LedgerMachine,), {"url": url, "scripts": scripts or {}})
    given = {"deadline": None, "suppress_health_check": UNHURRIED, "database": None, **options}
    run_state_machine_as_test(machine, settings=settings(**given))


def test_random_operations(redis_url):
    run_machine(redis_url, max_examples=55, stateful_step_count=40)


@pytest.mark.long
def test_many_random_operations(redis_url):
    run_machine(redis_url, max_examples=600, stateful_step_count=80)
