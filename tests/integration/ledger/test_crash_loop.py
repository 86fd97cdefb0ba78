"""A task whose runs die does not keep a GPU from others: it waits for a while, longer with each death."""

import pytest

from celery_gpulease.ledger.views import pending_rows, pool_rows

HEARTBEAT = 10_000  # milliseconds: a third of the ledger's ttl


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def ticket(world):
    return world.hold()


def dies(world, worker, times=1, limit=99):
    """The first in line is given out and dies, so often; its delay is over each time but the last."""
    for number in range(times):
        worker.claim()
        run = worker.run(nonce=f"nonce-{number}", limit=limit)
        world.ledger.requeue(run, "its process died", counted=True)
        if number < times - 1:
            world.end_delay(run.ticket)
    return run


def delay_ms(world, ticket):
    return world.client.zscore(world.key("scheduled"), ticket) - world.now_ms()


def test_its_first_death_delays_nothing(world, worker, ticket):
    dies(world, worker)
    assert world.state(ticket) == "claimed"
    world.ledger.requeue(worker.pop(), "unstarted", counted=False)


@pytest.mark.parametrize(("deaths", "heartbeats"), [(2, 1), (3, 2), (4, 4), (7, 30), (12, 30)])
def test_from_the_second_it_waits_for_a_heartbeat_doubled_each_time_up_to_five_minutes(
    world, worker, ticket, deaths, heartbeats
):
    dies(world, worker, deaths)
    assert world.state(ticket) == "scheduled"
    assert (heartbeats - 0.5) * HEARTBEAT < delay_ms(world, ticket) <= heartbeats * HEARTBEAT


def test_meanwhile_its_gpu_serves_others_and_then_it_is_first_again(world, worker, ticket):
    other, another = world.hold(), world.hold()
    dies(world, worker, 2)
    run = worker.run()
    assert run.ticket == other
    world.end_delay(ticket)
    assert world.line() == [ticket, another]


def test_what_is_reaped_waits_too(world, worker, ticket):
    dies(world, worker)
    worker.run("again")
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert world.state(ticket) == "scheduled"
    assert 0 < delay_ms(world, ticket) <= HEARTBEAT


def test_a_run_that_was_taken_for_dead_comes_back_out_of_its_wait(world, worker, ticket):
    dies(world, worker)
    run = worker.run("again")
    world.lapse()
    world.ledger.reap("node:0")
    assert world.ledger.renew(run) == "regained"
    assert world.state(ticket) == "started"
    assert world.client.zcard(world.key("scheduled")) == 0


def test_a_worker_that_stops_delays_nothing(world, worker, ticket):
    dies(world, worker)
    run = worker.run("again")
    world.ledger.requeue(run, "shutdown", counted=False)
    assert world.state(ticket) == "claimed"


def test_pending_says_why_it_waits(world, worker, ticket):
    dies(world, worker, 2)
    (row,) = pending_rows(world.ledger, [])
    assert "not due yet: in 10 s, since its runs died 2 times" in row.reason
    assert pool_rows(world.ledger, [])["default"].scheduled == 1


def test_it_can_be_taken_back_meanwhile_and_expires_meanwhile(world, worker):
    first, second = world.hold(task_id="mine"), world.hold(expires_ms=world.now_ms() + 5000)
    for _ in range(2):
        dies(world, worker, 2)
    assert world.states(first, second) == ["scheduled", "scheduled"]
    assert world.ledger.cancel("mine").is_known
    world.make_expired(second)
    assert world.ledger.promote() == (0, 1)
    assert world.states(first, second) == ["ending", "ending"]
