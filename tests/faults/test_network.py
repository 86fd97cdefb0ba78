"""The network between workers and Redis breaks; whatever breaks, the running task goes on and the next ones run."""

import pytest

from tests.faults.faults import Fault
from tests.faults.world import TTL
from tests.waiting import wait_until

NETWORK = [Fault.REDIS_CUT, Fault.REDIS_RESET, Fault.REDIS_STALLED, Fault.REDIS_HALF_OPEN]


@pytest.mark.parametrize("fault", NETWORK, ids=lambda fault: fault.name)
def test_a_run_outlives_a_broken_network_and_the_line_goes_on(proxied, fault):
    world = proxied
    world.worker(0)
    running = world.send("wait_for", "go")
    world.started(running)
    waiting = [world.send("add", n, n) for n in range(3)]
    with fault.during(world):
        if fault in (Fault.REDIS_CUT, Fault.REDIS_STALLED):
            wait_until(lambda: not world.lease(0), TTL + 10, "the lease to lapse")
    wait_until(lambda: world.lease(0), 20, "the run to have its lease back")
    world.open("go")
    world.succeeds(running, *waiting)
    assert [len(world.runs(task)) for task in (running, *waiting)] == [1, 1, 1, 1]
