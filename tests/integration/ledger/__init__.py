import pytest

pytest.register_assert_rewrite("tests.integration.ledger.machine")  # its assertions are a test's
