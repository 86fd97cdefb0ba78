"""BURY: a worker whose processes are seen to be gone is gone at once, and so is what it held."""

import pytest

from celery_gpulease.reconcile.gpus import correct_keys


@pytest.fixture
def dead(world):
    """A worker that was killed a moment ago; nothing of what it had has lapsed."""
    return world.join()


def buried(world, dead):
    dead.die()
    assert world.ledger.bury("node:0", dead.presence.instance)


def test_the_neighbours_of_a_host_are_those_that_did_not_leave(world, dead):
    left = world.join("node:1")
    world.join("GPU-7")  # which is node:3
    world.join("other:0")
    left.leave()
    dead.die()
    world.lapse_presence()
    found = world.ledger.neighbours("node")
    assert sorted(gpu for gpu, _ in found) == ["GPU-7", "node:0"]
    assert dead.presence in [presence for _, presence in found]


def test_who_comes_is_told_to_the_others_of_its_host(world):
    world.join("node:0")
    world.join("other:0")
    world.heard()
    newcomer = world.worker("node:1")
    world.ledger.join(newcomer.device, newcomer.pools, newcomer.presence)
    assert world.heard() == [("gpu:here:node:0", "neighbour")]


def test_what_it_ran_goes_to_another_gpu_at_once_and_counts(world, dead):
    ticket = world.hold()
    dead.claim()
    run = dead.run()
    world.join("node:1").claim()
    buried(world, dead)
    assert (world.lease(), world.claim_of()) == (None, {})
    assert world.ledger.renew(run) == "lost"  # sent just before
    again = world.pop("node:1")
    assert (again.ticket, again.delivery) == (ticket, 2)


def test_what_it_did_not_start_goes_back_and_its_gpu_is_not_blamed(world, dead):
    ticket = world.hold()
    dead.claim()
    # the server has not noticed the end of its connections yet
    assert world.ledger.bury("node:0", dead.presence.instance)
    assert world.pop() is None
    assert (world.ticket(ticket)["state"], world.ticket(ticket)["deliveries"]) == ("pending", "0")
    assert not world.client.exists(world.key("closed", "node:0"))


def test_a_run_elsewhere_of_what_it_did_not_start_may_still_come_back(world, dead):
    other = world.join("node:1")
    world.drained("node:0")
    ticket = world.hold()
    other.claim()
    run = other.run()
    world.drained("node:1")
    world.lapse("node:1")
    assert world.ledger.reap("node:1") == "reaped"  # it is cut off, and runs on
    world.ledger.drain("node:0", drained=False)
    assert world.state(ticket) == "claimed"
    buried(world, dead)
    assert world.ledger.renew(run) == "regained"


def test_its_gpu_is_given_to_nobody(world, dead):
    dead.claim()
    buried(world, dead)
    ticket = world.hold()
    assert (world.state(ticket), world.free()) == ("pending", [])


def test_an_outage_gives_it_no_grace(world, dead):
    ticket = world.hold()
    dead.claim()
    dead.run()
    world.outage()
    buried(world, dead)
    assert world.state(ticket) == "pending"


def test_it_is_buried_once_and_never_for_another(world, dead):
    ticket = world.hold()
    dead.claim()
    run = dead.run()
    dead.die()
    before = world.everything()
    assert not world.ledger.bury("node:0", "somebody else")
    assert world.everything() == before
    assert world.ledger.bury("node:0", dead.presence.instance)
    assert not world.ledger.bury("node:0", dead.presence.instance)
    newcomer = world.join()
    newcomer.claim()
    again = newcomer.run()
    assert not world.ledger.bury("node:0", dead.presence.instance)
    assert (world.lease(), world.state(ticket)) == (again.token, "started")
    assert again.fence > run.fence


def test_a_run_that_another_worker_started_is_not_its_own(world):
    first = world.join()
    ticket = world.hold()
    first.claim()
    run = first.run()
    world.lapse_presence()  # it is cut off, and runs on
    buried(world, world.join())
    assert (world.lease(), world.state(ticket)) == (run.token, "started")


def told_offline(world):
    entries = [fields for _, fields in world.client.xrange("gpu:journal") if fields["what"] == "offline"]
    return [(one["gpu"], one["detail"]) for one in entries]


def test_the_journal_says_once_that_a_worker_is_gone_without_a_goodbye(world, dead):
    buried(world, dead)
    assert not world.ledger.bury("node:0", dead.presence.instance)
    assert told_offline(world) == [("node:0", "gpu@node")]
    world.join("node:0").leave()
    assert list(correct_keys(world.ledger, "node:0", change=True)) == []
    assert told_offline(world) == [("node:0", "gpu@node")]


def test_the_reconciler_says_it_where_no_neighbour_can_and_again_when_it_happens_again(world, dead):
    dead.die()
    world.lapse_presence()
    list(correct_keys(world.ledger, "node:0", change=False))
    assert told_offline(world) == []
    for _ in range(2):
        list(correct_keys(world.ledger, "node:0", change=True))
    assert told_offline(world) == [("node:0", "gpu@node")]
    dead.report()  # it was only cut off
    world.lapse_presence()
    list(correct_keys(world.ledger, "node:0", change=True))
    assert len(told_offline(world)) == 2


def test_who_takes_a_gpu_over_says_it_of_who_was_there(world, dead):
    world.lapse_presence()
    newcomer = world.join()
    assert told_offline(world) == [("node:0", "gpu@node")]
    newcomer.join()
    assert len(told_offline(world)) == 1
