"""The network between workers and Redis breaks; whatever breaks, the running task goes on and the next ones run."""

import signal

import pytest

from tests.faults.conftest import world_on
from tests.faults.faults import Fault
from tests.faults.world import HOST, SOON, TTL
from tests.proxy import Proxy
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


@pytest.mark.long
def test_a_worker_that_is_stopped_while_a_success_cannot_be_stored_gives_its_task_back(
    own_server, tmp_path, monkeypatch
):
    """Its process is somewhere in a retry of Celery's `result_backend_always_retry`, and no end is stored."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    conf = {"result_backend_always_retry": True}
    with Proxy(own_server.port) as proxy, world_on(proxy.url, tmp_path, own_server, proxy, **conf) as world:
        worker = world.worker(0)
        task = world.send("wait_for", "go")
        world.started(task)
        proxy.cut()
        world.open("go")
        wait_until(lambda: worker.log.count("Retrying") > 8, SOON, "its process to wait for long between two tries")
        proxy.heal()
        worker.send(signal.SIGQUIT)
        worker.wait()
        world.worker(0)
        world.succeeds(task)
        world.rest()
