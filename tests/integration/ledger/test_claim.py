"""CLAIM: a free GPU's lease for whoever is first in its lines, to one caller only."""

import threading

import pytest

from celery_gpulease.ledger.answers import Closed


def test_nobody_waits_and_the_gpu_is_known_to_be_free(world):
    assert world.join(pools=("a", "b")).claim() is None
    assert world.free("a") == world.free("b") == ["node:0"]


def test_the_first_in_line_gets_lease_claim_and_message(world):
    first, second = world.hold(), world.hold()
    assert world.join().claim() == first
    claim = world.pop()
    assert world.lease() == claim.token == world.ticket(first)["token"]
    assert 29_000 < world.lease_ms() <= 30_000
    assert world.claim_of()["fence"] == str(claim.fence)
    assert world.states(first, second) == ["claimed", "pending"]


def test_the_lease_lasts_as_long_as_the_gpus_worker_registered(world):
    world.join()
    world.client.hset(world.key("device", "node:0"), "ttl_ms", 5000)
    world.client.zadd(world.key("gpus"), {"node:0": 5000})
    world.hold()
    world.ledger.claim("node:0")
    assert 4000 < world.lease_ms() <= 5000


def test_a_claim_that_nobody_started_is_the_answer_to_a_repeated_call(world):
    worker = world.join()
    ticket, other = world.hold(), world.hold()
    assert worker.claim() == ticket
    before = world.everything()
    assert worker.claim() == ticket
    assert world.everything() == before
    assert world.state(other) == "pending"


def test_pinned_ones_come_first_then_the_pools_in_their_order(world):
    tickets = [
        world.hold(pool="first"),
        world.hold(pool="second"),
        world.hold(pool="elsewhere", pin="node:3"),
        world.hold(pool="elsewhere", pin="GPU-7"),
    ]
    worker = world.join("GPU-7", ("second", "first"))
    served = []
    while ticket := worker.claim():
        world.ledger.release(worker.run())
        served.append(ticket)
    assert served == tickets[::-1]


def test_fences_grow_with_every_claim_also_when_the_clock_does_not(world):
    worker = world.join()
    ahead = world.now_ms() + 10_000
    world.client.set(world.key("fence", "node:0"), ahead)
    for _ in range(3):
        world.hold()
        worker.claim()
        run = worker.run()
        ahead += 1
        assert run.fence == ahead
        world.ledger.release(run)


def test_fences_grow_again_where_their_key_is_gone(world):
    worker = world.join()
    world.hold()
    worker.claim()
    first = worker.run()
    world.ledger.release(first)
    world.client.delete(world.key("fence", "node:0"))
    world.hold()
    worker.claim()
    assert worker.run().fence >= first.fence


def test_what_has_expired_in_line_goes_to_its_end_and_the_next_is_taken(world):
    expired, next_one = world.hold(expires_ms=world.now_ms() + 3_600_000), world.hold()
    world.make_expired(expired)
    assert world.join().claim() == next_one
    assert world.ticket(expired)["why"] == "expired"


def test_what_has_expired_leaves_the_line_where_it_is_found_also_where_that_is_none_of_its_own(world):
    expired, next_one = world.hold(pool="nobody", expires_ms=world.now_ms() + 3_600_000), world.hold()
    world.make_expired(expired)
    world.client.zadd(world.key("pending", "default"), {expired: 0})
    assert world.join().claim() == next_one
    assert world.client.zscore(world.key("pending", "default"), expired) is None
    assert world.ticket(expired)["why"] == "expired"


CLOSED = {
    "drained": (lambda world, worker: world.ledger.drain(worker.gpu, drained=True), "drain"),
    "closing": (lambda _, worker: worker.close(), "closing"),
    "leased_by_a_stranger": (lambda world, _: world.stranger_takes(), "leased"),
    "wanted": (lambda world, _: world.want(), "wanted"),
}


@pytest.mark.parametrize(("close", "reason"), CLOSED.values(), ids=CLOSED.keys())
def test_a_closed_gpu_gets_nothing(world, close, reason):
    worker = world.join()
    worker.claim()
    close(world, worker)
    ticket = world.hold()
    answer = worker.claim()
    assert isinstance(answer, Closed)
    assert answer.reason == reason
    assert world.state(ticket) == "pending"


def test_a_strangers_lease_says_how_long_it_lasts(world):
    worker = world.join()
    world.stranger_takes(ms=20_000)
    assert 19_000 < worker.claim().lease_ms <= 20_000


def test_a_lease_without_a_ttl_is_respected(world):
    worker = world.join()
    world.client.set(world.ledger.keys.lease("node:0"), "stranger")
    world.hold()
    assert worker.claim() == Closed("leased", -1)


def test_a_lapsed_lease_of_a_run_is_no_free_gpu(world):
    worker = world.join()
    world.hold()
    worker.claim()
    worker.run()
    world.lapse()
    waiting = world.hold()
    assert worker.claim() == Closed("leased", -2)
    assert world.state(waiting) == "pending"


def test_a_claim_of_mine_under_a_strangers_lease_is_not_mine(world):
    worker = world.join()
    world.hold()
    worker.claim()
    world.lapse()
    world.stranger_takes()
    assert worker.claim().reason == "leased"


def test_where_the_server_does_not_tell_who_listens_presence_decides(world):
    client = world.client
    client.execute_command("ACL", "SETUSER", "default", "-pubsub")
    try:
        world.join().claim()
        world.deafen("node:0")
        held = world.held()
        assert world.ledger.hold(held) == "claimed"
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+pubsub")


def test_twenty_callers_at_once_make_one_claim(world):
    world.join()
    tickets = [world.hold() for _ in range(20)]
    answers, gate = [], threading.Barrier(20)

    def claim():
        gate.wait()
        answers.append(world.ledger.claim("node:0"))

    threads = [threading.Thread(target=claim) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [tickets[0]] * 20
    assert world.count("claimed") == 1
    assert world.client.llen(world.ledger.route_to("node:0")) == 1
