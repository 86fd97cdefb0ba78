"""TURN: one reconciler at a time, and not sooner than wanted after the last one."""

import pytest

from celery_gpulease.ledger.orders import TURN_MS
from tests.integration.ledger.world import LONG_AGO


@pytest.fixture
def turn(world):
    """The key whose value says whose turn it is."""
    return world.key("turn", "reconcile")


def make_old(world):
    """The last turn began long ago."""
    assert world.client.hset(world.key("pulse"), "reconciled_at", LONG_AGO) == 0


def test_one_at_a_time(world):
    assert world.ledger.take_turn("me")
    assert not world.ledger.take_turn("other")
    world.ledger.end_turn("me")
    assert world.ledger.take_turn("other")


def test_asking_again_it_is_still_mine(world, turn):
    assert world.ledger.take_turn("me", age=60)
    before = world.everything()
    assert world.ledger.take_turn("me", age=60)
    assert world.everything() == before


def test_the_turn_of_another_is_not_mine_to_end(world, turn):
    world.ledger.take_turn("me")
    world.ledger.end_turn("other")
    assert world.client.get(turn) == "me"
    assert not world.ledger.take_turn("other")


def test_ending_what_is_over_does_nothing(world):
    world.ledger.take_turn("me")
    world.ledger.end_turn("me")
    before = world.everything()
    world.ledger.end_turn("me")
    assert world.everything() == before


def test_who_took_it_too_early_waits_until_the_last_turn_is_old_enough(world):
    world.ledger.take_turn("me")
    world.ledger.end_turn("me")
    assert not world.ledger.take_turn("other", age=60)
    assert not world.ledger.take_turn("me", age=60)
    make_old(world)
    assert world.ledger.take_turn("other", age=60)


def test_without_an_age_it_may_follow_at_once(world):
    world.ledger.take_turn("me")
    world.ledger.end_turn("me")
    assert world.ledger.take_turn("other")


def test_what_was_refused_does_not_count_as_a_turn(world):
    world.ledger.take_turn("me")
    make_old(world)
    assert not world.ledger.take_turn("other")
    world.ledger.end_turn("me")
    assert world.ledger.take_turn("other", age=60)


def test_the_turn_of_the_dead_ends_by_itself(world, turn):
    world.ledger.take_turn("dead")
    assert 0 < world.client.pttl(turn) <= TURN_MS
    world.client.pexpireat(turn, LONG_AGO)
    assert world.ledger.take_turn("other")


def test_the_last_turn_of_a_clock_that_was_stepped_back_since_is_over(world, turn):
    world.ledger.take_turn("me")  # and never ends it
    world.client.pexpire(turn, 3_600_000)
    world.client.hset(world.key("pulse"), "reconciled_at", world.now_ms() + 3_600_000)
    assert not world.ledger.take_turn("other", age=60)
    assert 0 < world.client.pttl(turn) <= TURN_MS
    world.client.delete(turn)
    assert world.ledger.take_turn("other", age=60)
