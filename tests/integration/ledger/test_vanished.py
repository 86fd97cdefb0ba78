"""What somebody deleted by hand, or a server evicted, hinders nobody else: the operation goes on with the others."""

import pytest

HOUR_MS = 3_600_000


@pytest.fixture
def worker(world):
    return world.join()


@pytest.fixture
def far(world):
    return world.now_ms() + HOUR_MS


def vanished(world):
    """The tickets whose end the journal calls so."""
    return [entry["ticket"] for _, entry in world.client.xrange(world.key("journal")) if entry["what"] == "vanished"]


def is_gone(world, *tickets):
    """Nothing is left of them but their ids, and the journal says so once."""
    keys = [world.key(kind, ticket) for kind in ("ticket", "message", "returned") for ticket in tickets]
    ended = [world.state(ticket) for ticket in tickets]
    return ended == ["ended"] * len(tickets) and not world.client.exists(*keys) and vanished(world) == list(tickets)


# the message


def test_a_claim_goes_to_the_next_whose_message_is_there(world, worker):
    first, second, third = (world.hold() for _ in range(3))
    world.lose_message(first)
    world.lose_message(second)
    assert worker.claim() == third
    assert worker.pop().ticket == third
    assert is_gone(world, first, second)


def test_many_without_a_message_leave_the_gpu_free_for_the_next_call_which_its_worker_makes_at_once(world, worker):
    gone = [world.hold() for _ in range(20)]
    last = world.hold()
    for ticket in gone:
        world.lose_message(ticket)
    world.listen("node:0")
    world.heard()
    assert worker.claim() is None
    assert world.free() == ["node:0"]
    assert world.heard() == [(world.ledger.keys.here("node:0"), "lease")]
    assert worker.claim() == last
    assert is_gone(world, *gone)


def test_where_it_is_gone_under_a_claim_nothing_is_routed_again(world, worker):
    ticket = world.hold()
    worker.claim()
    worker.pop()
    world.lose_message(ticket)
    assert worker.report(grace=0) == "present"
    assert worker.pop() is None
    world.lapse()
    world.ledger.reap("node:0")
    assert is_gone(world, ticket)


def test_where_it_is_gone_a_reaped_run_ends_and_the_next_is_claimed(world, worker):
    ticket, waiting = world.hold(), world.hold()
    worker.claim()
    worker.run()
    world.lose_message(ticket)
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert is_gone(world, ticket)
    assert worker.pop().ticket == waiting


@pytest.mark.parametrize("started", [True, False])
def test_where_it_is_gone_a_worker_can_leave(world, worker, started):
    other = world.join("node:1")
    other.claim()
    ticket = world.hold(pin="node:0")
    worker.claim()
    if started:
        worker.run()
    waiting = world.hold(pin="node:0")
    world.lose_message(ticket)
    worker.leave()
    assert world.states(ticket, waiting) == ["pending", "pending"]
    assert worker.join() == ["joined"]
    assert worker.claim() == waiting
    assert is_gone(world, ticket)


def test_where_it_is_gone_a_promoted_one_ends_and_the_others_are_claimed(world, worker, far):
    worker.claim()
    first, second = world.hold(eta_ms=far), world.hold(eta_ms=far)
    world.lose_message(first)
    world.make_due(first, 1000)
    world.make_due(second, 2000)
    assert world.ledger.promote() == (2, 0)
    assert worker.pop().ticket == second
    assert is_gone(world, first)


def test_where_it_is_gone_a_run_renews_and_ends_as_ever(world, worker):
    ticket = world.hold()
    worker.claim()
    run = worker.run()
    world.lose_message(ticket)
    assert world.ledger.renew(run) == "renewed"
    assert world.ledger.release(run) == "released"
    assert world.state(ticket) == "ended"
    assert vanished(world) == []


@pytest.fixture
def endings(world, far):
    """Three tickets that have expired, in order."""
    tickets = [world.hold(expires_ms=far) for _ in range(3)]
    for ticket in tickets:
        world.make_expired(ticket)
    world.ledger.promote()
    for at_ms, ticket in enumerate(tickets):
        world.client.zadd(world.key("ending"), {ticket: at_ms})
    return tickets


@pytest.mark.parametrize("lose", ["lose_message", "lose_ticket"])
def test_an_end_that_nobody_can_write_does_not_hide_the_next(world, endings, lose):
    first, second, third = endings
    getattr(world, lose)(first)
    getattr(world, lose)(second)
    assert world.ledger.end().ticket == third
    assert world.ledger.end() is None
    assert is_gone(world, first, second)


def test_a_ticket_that_is_gone_has_no_end(world, endings):
    world.lose_ticket(endings[0])
    assert world.ledger.end(endings[0]) is None
    assert world.ledger.finish(endings[0]) == "stale"
    assert is_gone(world, endings[0])


def test_who_is_not_ending_is_not_remembered_as_ended(world):
    waiting = world.hold()
    assert world.ledger.end(waiting) is None
    assert world.ledger.end("no such ticket") is None
    assert world.states(waiting, "no such ticket") == ["pending", None]


# the ticket itself


@pytest.mark.parametrize("pin", ["", "node:0"])
def test_in_a_line_it_is_passed_over(world, far, pin):
    gone, next_one = world.hold(pin=pin, expires_ms=far), world.hold()
    world.lose_ticket(gone)
    assert world.join().claim() == next_one
    assert is_gone(world, gone)


def test_many_of_a_line_are_passed_over_in_a_few_calls(world, worker):
    gone = [world.hold() for _ in range(40)]
    last = world.hold()
    for ticket in gone:
        world.lose_ticket(ticket)
    answers = [worker.claim() for _ in range(4)]
    assert answers[-1] == last
    assert is_gone(world, *gone)


def test_scheduled_it_is_dropped_when_it_is_due_and_the_count_heals(world, far):
    gone, other = world.hold(eta_ms=far), world.hold(eta_ms=far)
    world.lose_ticket(gone)
    world.client.zadd(world.key("scheduled"), {gone: 1000})
    world.make_due(other, 2000)
    assert world.ledger.promote() == (2, 0)
    assert world.states(gone, other) == ["ended", "pending"]
    assert world.client.hgetall(world.key("scheduled_count")) == {}
    assert is_gone(world, gone)


@pytest.mark.parametrize("scheduled", [True, False])
def test_expiring_it_is_dropped_and_the_others_expire(world, worker, far, scheduled):
    gone, other = (world.hold(eta_ms=far if scheduled else 0, expires_ms=far) for _ in range(2))
    world.lose_ticket(gone)
    world.client.zadd(world.key("expiring"), {gone: 1000})
    world.make_expired(other)
    assert world.ledger.promote() == (0, 2)
    assert world.states(gone, other) == ["ended", "ending"]
    world.client.zrem(world.key("scheduled"), gone)
    assert worker.claim() is None  # in the line it is passed over
    assert is_gone(world, gone)


@pytest.mark.parametrize("started", [True, False])
def test_under_a_claim_it_is_reaped_and_the_next_is_claimed(world, worker, started):
    gone, waiting = world.hold(), world.hold()
    worker.claim()
    if started:
        worker.run()
    world.lose_ticket(gone)
    world.lapse()
    assert world.ledger.reap("node:0") == "reaped"
    assert worker.pop().ticket == waiting
    assert is_gone(world, gone)


@pytest.mark.parametrize("started", [True, False])
def test_under_a_claim_a_worker_can_leave(world, worker, started):
    gone = world.hold()
    worker.claim()
    if started:
        worker.run()
    world.lose_ticket(gone)
    worker.leave()
    assert (world.lease(), world.claim_of(), worker.pop()) == (None, {}, None)
    assert is_gone(world, gone)


def test_under_a_claim_that_yields_to_a_run(world, worker):
    world.hold()
    worker.claim()
    run = worker.run()
    world.client.delete(world.ledger.keys.lease(run.gpu), world.key("claim", run.gpu))  # what should never be
    gone = world.hold()
    assert worker.claim() == gone
    world.lose_ticket(gone)
    assert world.ledger.renew(run) == "regained"
    assert world.lease() == run.token
    assert is_gone(world, gone)


def test_a_claim_of_it_that_is_popped_is_dropped_and_no_more(world, worker):
    gone = world.hold()
    worker.claim()
    claim = worker.pop()
    world.lose_ticket(gone)
    assert worker.start(claim) == "unknown"
    assert world.ledger.defer(claim, 60) == "stale"
    assert world.ledger.give_back(claim) == "stale"
    assert world.ledger.requeue(claim, "test", counted=False) == "stale"
    assert world.lease() is None
    assert world.client.delete(world.key("message", gone))  # nothing names it any more


# what has expired


def test_many_that_have_expired_do_not_hide_who_is_behind_them(world, worker, far):
    expired = [world.hold(expires_ms=far) for _ in range(20)]
    last = world.hold()
    for ticket in expired:
        world.make_expired(ticket)
    assert worker.claim() is None
    assert world.ledger.promote() == (0, 4)
    assert worker.pop().ticket == last


# everything


def test_after_flushdb_a_run_keeps_its_gpu_until_it_ends(world, worker):
    world.hold()
    worker.claim()
    run = worker.run()
    world.client.flushdb()
    assert world.ledger.renew(run) == "flushed"
    assert (world.lease(), world.ledger.is_lost(run)) == (run.token, False)
    assert worker.report(run) == "unregistered"
    assert worker.join() == ["joined"]
    waiting = world.hold()
    assert worker.claim().reason == "leased"
    assert world.ledger.dispatch("node:0") == "closed"
    world.age()
    assert world.ledger.renew(run) == "flushed"
    assert world.lease_ms() > 29_000
    assert not world.ledger.is_lost(run)
    assert world.state(waiting) == "pending"
    assert world.ledger.release(run) == "unknown"
    assert world.lease() is None
    assert worker.claim() == waiting


def test_after_flushdb_a_stranger_that_was_faster_keeps_the_gpu(world, worker):
    world.hold()
    worker.claim()
    run = worker.run()
    world.client.flushdb()
    world.stranger_takes()
    assert world.ledger.renew(run) == "lost"
    assert world.ledger.is_lost(run)
    assert world.ledger.release(run) == "unknown"
    assert world.lease() == "stranger"
