"""INSPECT: one GPU as the reconciler finds it; the index of free ones is put right only where it is told to."""

import pytest


def found(world, *, change=False, gpu="node:0"):
    now, alive, claimable, astray, waits, *rest = world.ledger.inspect(gpu, change=change)
    assert abs(now - world.now_ms()) < 1000
    return [bool(one) for one in (alive, claimable, astray, waits)], rest


def test_a_free_gpu_in_its_index(world):
    world.join().claim()
    flags, claim = found(world)
    assert flags == [True, True, False, False]
    assert claim[:3] == [None] * 3


def test_a_running_gpu(world):
    worker = world.join()
    world.hold()
    worker.claim()
    run = worker.run()
    worker.report(run)
    (alive, claimable, astray, _), (state, token, lease, running, reported, started, *rest) = found(world)
    assert (alive, claimable, astray) == (True, False, False)
    assert (state, token, lease, running) == ("started", run.token, run.token, run.token)
    assert int(started) <= int(reported)
    ticket, fence, heartbeat_ms, ttl_ms, is_over, since = rest
    assert (ticket, int(fence), heartbeat_ms, ttl_ms, is_over, since) == (
        run.ticket,
        run.fence,
        "10000",
        "30000",
        0,
        None,
    )


@pytest.fixture
def lapsed(world):
    """A run whose lease is over, of a worker that is there."""
    worker = world.join()
    world.hold()
    worker.claim()
    run = worker.run()
    world.lapse()
    return run


def is_over(world):
    """As REAP would see it; looking changes nothing."""
    before = world.everything()
    over = world.ledger.inspect("node:0", change=False)[-2]
    assert world.everything() == before
    return bool(over)


def test_a_claim_whose_lease_has_lapsed_is_over(world, lapsed):
    assert is_over(world)


def test_a_run_that_may_take_its_lease_back_after_an_outage_is_not_over(world, lapsed):
    world.outage()
    assert not is_over(world)


def test_a_run_without_its_lease_is_over_when_its_deadline_has_passed(world, lapsed):
    world.stranger_takes()
    world.ledger.renew(lapsed)
    assert not is_over(world)
    world.lapse()
    assert is_over(world)


def test_it_says_that_somebody_waits(world):
    world.join(pools=("a", "b"))
    world.hold(pool="b")
    assert found(world)[0] == [True, True, True, True]


MISTAKES = {
    "free_and_missing": (lambda world, _: world.client.delete(world.key("free", "default")), ["node:0"]),
    "dead_and_listed": (lambda _, worker: worker.die(), []),
}

EXPECTED = {
    "leased_by_a_stranger": lambda world: world.stranger_takes(),
    "wanted": lambda world: world.want(),
}


@pytest.mark.parametrize("borrow", EXPECTED.values(), ids=EXPECTED.keys())
def test_what_a_stranger_borrows_may_stay_listed_and_is_no_mistake(world, borrow):
    worker = world.join()
    worker.claim()
    borrow(world)
    assert found(world, change=True)[0][1:3] == [False, False]
    assert world.free() == [worker.gpu]


@pytest.mark.parametrize(("mistake", "right"), MISTAKES.values(), ids=MISTAKES.keys())
def test_an_index_that_is_wrong_is_put_right_when_told(world, mistake, right):
    worker = world.join()
    worker.claim()
    mistake(world, worker)
    before = world.free()
    assert found(world)[0][2] is True
    assert world.free() == before
    assert found(world, change=True)[0][2] is True
    assert world.free() == right
    assert found(world)[0][2] is False


def test_a_gpu_that_nobody_registered(world):
    flags, rest = found(world, gpu="nobody:0")
    assert not any(flags)
    assert not any(rest)
