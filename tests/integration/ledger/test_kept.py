"""Kept connections: whatever befalls one, no answer is ever another command's."""

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import redis

from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.kept import Kept
from celery_gpulease.settings import Settings


@pytest.fixture
def kept(ledger):
    return Kept(ledger.client)


def test_each_thread_gets_its_own_answer(kept):
    said = [str(number) for number in range(2000)]
    with ThreadPoolExecutor(20) as threads:
        assert list(threads.map(lambda one: kept.ask("ECHO", one), said)) == said


def test_one_connection_serves_one_thread_also_after_an_error_of_the_servers(kept):
    connection = kept.ask("CLIENT", "ID")
    with pytest.raises(redis.exceptions.ResponseError):
        kept.ask("GET")
    assert kept.ask("CLIENT", "ID") == connection


def test_one_that_has_died_is_replaced_unnoticed(world, kept):
    world.client.client_kill_filter(_id=kept.ask("CLIENT", "ID"))
    assert kept.ask("ECHO", "here") == "here"


def test_one_that_has_died_is_replaced_also_where_redis_py_is_told_to_try_nothing_again(redis_url):
    ledger = Ledger(Settings(redis_url=redis_url, redis_options={"retry": None}))
    kept = Kept(ledger.client)
    for _ in range(3):
        ledger.client.client_kill_filter(_id=kept.ask("CLIENT", "ID"))
        assert kept.ask("ECHO", "here") == "here"
    ledger.client.close()


class Interrupted(BaseException):
    """Raised where the process happens to be, as Celery's soft time limit is."""


@contextmanager
def interrupted_after(seconds):
    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_reply_that_was_not_waited_for_is_not_the_next_ones(kept):
    with pytest.raises(Interrupted), interrupted_after(0.05):
        kept.ask("BLPOP", "nothing", 5)
    assert kept.ask("ECHO", "mine") == "mine"


def test_a_signals_handler_may_ask_while_its_process_waits_for_an_answer(world, kept):
    heard = []

    def interrupt(*_):
        heard.append(kept.ask("ECHO", "the handler's"))
        world.client.rpush("something", "it")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        assert kept.ask("BLPOP", "something", 5) == ["something", "it"]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert heard == ["the handler's"]
