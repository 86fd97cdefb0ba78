"""The tests of the ledger can fail: each of these mistakes, made in one place of the Lua, is seen by them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.ledger import mutations
from tests.integration.ledger.machine import LedgerMachine
from tests.integration.ledger.mutations import MUTATION, MUTATIONS, mutated
from tests.integration.ledger.test_state_machine import UNHURRIED

TESTS = Path(__file__).parents[1]

# What the state machine sees soon, mostly in the first examples. It sees more, the later the longer one lets it look.
SOON_SEEN = (
    "a_claim_overlooks_a_lease",
    "a_claim_overlooks_a_lapsed_run",
    "hold_does_not_know_what_has_ended",
    "taken_out_of_the_line_and_not_of_its_index",
    "back_in_line_behind_everybody",
    "a_retry_does_not_supersede",
)
# It ends with the first that sees the mistake: the server's clock makes no two runs alike.
MOST_EXAMPLES = 3000


def pytest_with(mutation, test):
    """Runs one test in a pytest of its own, whose ledgers make the mistake, on a server of its own; its exit code."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "REDIS_URL"))}
    options = ("-q", "-x", "-p", mutations.__name__, "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(TESTS / test)],
        cwd=TESTS.parents[1],
        env={**env, MUTATION: mutation},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", MUTATIONS)
def test_it_is_seen_by_its_test(name):
    run = pytest_with(name, MUTATIONS[name].seen_by)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr


def look_for(url, texts, examples):
    """Lets the state machine look; it raises what it sees."""
    machine = type("Mutated", (LedgerMachine,), {"url": url, "scripts": texts})
    options = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        database=None,
        suppress_health_check=UNHURRIED,
        phases=[Phase.generate],  # any failure will do, the shortest is of no interest
        print_blob=False,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(seed(1)(machine), settings=options)


@pytest.mark.long
@pytest.mark.parametrize("name", SOON_SEEN)
def test_it_is_seen_by_the_state_machine(redis_url, name):
    texts = mutated(MUTATIONS[name])
    with pytest.raises(AssertionError):
        look_for(redis_url, texts, MOST_EXAMPLES)
