"""DRAIN: no new work by order; what runs ends by itself; it survives the worker."""

import pytest


def test_a_drained_gpu_finishes_its_job_and_gets_no_other(world):
    worker = world.join()
    world.hold()
    worker.claim()
    run = worker.run()
    assert world.ledger.drain("node:0", drained=True) == "node:0"
    assert world.ledger.renew(run) == "renewed"
    assert world.ledger.release(run) == "released"
    waiting = world.hold()
    assert worker.claim().reason == "drain"
    assert world.state(waiting) == "pending"


def test_what_was_routed_and_not_started_goes_back_uncounted_and_to_another_gpu(world):
    worker, other = world.join(), world.join("node:1")
    world.ledger.drain("node:1", drained=True)
    ticket = world.hold()
    assert worker.claim() == ticket
    popped = worker.pop()
    world.ledger.drain("node:1", drained=False)
    world.ledger.drain("node:0", drained=True)
    assert world.lease() is None
    assert worker.start(popped) == "stale"
    claim = other.pop()
    assert (claim.ticket, claim.delivery) == (ticket, 1)


def test_what_was_routed_to_the_only_gpu_is_taken_out_of_its_queue_and_waits_at_its_place(world):
    worker = world.join()
    first, second = world.hold(), world.hold()
    worker.claim()
    world.ledger.drain("node:0", drained=True)
    assert (worker.pop(), world.line()) == (None, [first, second])


def test_a_worker_that_starts_again_finds_it_drained(world):
    worker = world.join()
    world.ledger.drain("node:0", drained=True)
    worker.leave()
    worker.die()
    again = world.join()
    waiting = world.hold()
    assert again.claim().reason == "drain"
    assert world.state(waiting) == "pending"


def test_undrained_it_gets_whoever_waits_at_once(world):
    worker = world.join()
    world.ledger.drain("node:0", drained=True)
    ticket = world.hold()
    assert world.ledger.drain("node:0", drained=False) == "node:0"
    assert worker.pop().ticket == ticket


@pytest.mark.parametrize("name", ["GPU-7", "node:3"])
def test_either_name_will_do(world, name):
    world.join("GPU-7")
    assert world.ledger.drain(name, drained=True) == "GPU-7"


@pytest.mark.parametrize("drained", [True, False])
def test_an_unknown_gpu_is_said_to_be_unknown(world, drained):
    assert world.ledger.drain("nobody:0", drained=drained) is None


@pytest.mark.parametrize("drained", [True, False])
def test_doing_it_again_changes_nothing(world, drained):
    world.join().claim()
    world.ledger.drain("node:0", drained=drained)
    before = world.everything()
    world.ledger.drain("node:0", drained=drained)
    assert world.everything() == before


def test_a_dead_workers_gpu_gets_nothing_when_it_is_undrained(world):
    worker = world.join()
    world.ledger.drain("node:0", drained=True)
    worker.die()
    ticket = world.hold()
    world.ledger.drain("node:0", drained=False)
    assert world.state(ticket) == "pending"


def test_the_journal_tells_of_each_order_once(world):
    world.join()
    for drained in (True, True, False, False):
        world.ledger.drain("node:0", drained=drained)
    assert world.journal()[-2:] == ["drained", "undrained"]
