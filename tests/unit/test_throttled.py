"""A line of the log about many alike."""

import logging

import pytest

from celery_gpulease import throttled
from celery_gpulease.throttled import EVERY, ThrottledWarning


@pytest.fixture
def clock(monkeypatch):
    """Stands still until a test moves it."""
    now = [1000.0]
    monkeypatch.setattr(throttled.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def one():
    return ThrottledWarning(logging.getLogger("celery_gpulease"), "%d, the last %s")


def test_the_first_is_said_at_once_and_the_others_together_when_it_is_time(clock, one, caplog):
    for number in range(3000):
        one.add(number)
    assert caplog.messages == ["1, the last 0"]
    assert one.say() == EVERY
    clock[0] += EVERY
    assert one.say() is None
    assert caplog.messages == ["1, the last 0", "2999, the last 2999"]
    assert one.say() is None


def test_the_next_one_says_what_nobody_has_asked_for(clock, one, caplog):
    one.add("a")
    one.add("b")
    clock[0] += EVERY
    one.add("c")
    assert caplog.messages[1:] == ["2, the last c"]


def test_at_last_all_is_said(clock, one, caplog):
    one.add("a")
    one.add("b")
    one.say(at_last=True)
    one.say(at_last=True)
    assert caplog.messages == ["1, the last a", "1, the last b"]
