"""The threads beside a worker's event loop go on, whatever a turn raises."""

import logging
import threading

import pytest

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.loops import Loop
from tests.waiting import wait_until


class Scripted(Loop):
    """Raises or returns what it is told, one after the other, then waits to be woken."""

    def __init__(self, *answers):
        super().__init__("scripted")
        self.answers, self.turns = list(answers), 0

    def turn(self):
        self.turns += 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def run():
    started = []

    def start(*answers):
        loop = Scripted(*answers)
        started.append(loop)
        loop.start()
        return loop

    yield start
    for loop in started:
        loop.stop()
        loop.join(10)
        assert not loop.is_alive()


def test_an_error_is_logged_with_its_traceback_and_the_next_turn_comes(run, caplog):
    loop = run(ValueError("no"), 0)
    wait_until(lambda: loop.turns >= 3, 10, "the turns after the error")
    (record,) = [one for one in caplog.records if "goes on" in one.message]
    assert record.exc_info


def test_that_redis_is_away_is_said_once(run, caplog):
    caplog.set_level(logging.WARNING)
    away = [LedgerUnavailable("away")] * 3
    loop = run(*away, 0, LedgerUnavailable("again"))
    wait_until(lambda: loop.turns >= 6, 10, "the turns after the outage")
    assert len([one for one in caplog.records if "has lost Redis" in one.message]) == 2


class StopsMeanwhile(threading.Event):
    """Somebody stops the loop at the very moment when it is about to begin a turn."""

    def clear(self):
        self.loop.stop()
        super().clear()


def test_a_stop_just_before_a_turn_is_not_forgotten():
    loop = Scripted()
    loop.wanted = StopsMeanwhile()
    loop.wanted.loop = loop
    loop.start()
    loop.join(10)
    assert (loop.is_alive(), loop.turns) == (False, 0)


def test_it_waits_until_it_is_woken_and_a_wake_during_a_turn_is_not_lost(run):
    loop = run()
    wait_until(lambda: loop.turns == 1, 10, "the first turn")
    loop.wake()
    wait_until(lambda: loop.turns == 2, 10, "the turn that was asked for")
