"""The world of the fault tests, which serves here too: workers, tasks, and a journal of what ran."""

import os

import pytest

from tests.faults.conftest import world
from tests.rabbitmq import RabbitMQ, is_installed

__all__ = ["world"]


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory):
    """The RabbitMQ that the tests share; whoever kills it starts it again. Its tests are one xdist group."""
    if not is_installed():
        missing = "no RabbitMQ is installed: apt-get install rabbitmq-server"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with RabbitMQ(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server
