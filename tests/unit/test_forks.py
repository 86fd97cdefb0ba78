"""A process that is forked finds no lock closed that a thread of ours had."""

import os
import threading

import pytest

from celery_gpulease import forks
from celery_gpulease.forks import apart_from_forks
from tests.waiting import wait_until


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python 3.12 says so of any
def test_a_fork_waits_for_who_is_inside_and_its_child_finds_the_lock_open():
    lock, is_inside = threading.RLock(), threading.Event()

    def hold():
        with apart_from_forks(), lock:
            is_inside.set()
            threading.Event().wait(0.3)  # the fork below would come meanwhile

    thread = threading.Thread(target=hold)
    thread.start()
    is_inside.wait()
    if (pid := os.fork()) == 0:
        os._exit(not lock.acquire(timeout=1))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    thread.join()


def test_who_is_inside_may_fork_itself_and_nobody_is_kept_out_afterwards():
    with apart_from_forks():
        if (pid := os.fork()) == 0:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with apart_from_forks():
        pass


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_who_comes_while_a_fork_waits_enters_after_it():
    told = []

    def fork_once():
        if (pid := os.fork()) == 0:
            os._exit(0)
        told.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def enter():
        with apart_from_forks():
            told.append("inside")

    forking, entering = threading.Thread(target=fork_once), threading.Thread(target=enter)
    with apart_from_forks():
        forking.start()
        wait_until(lambda: forks._forks, 10, "the fork")
        entering.start()
        entering.join(0.3)
        assert told == []
    forking.join()
    entering.join()
    assert sorted(told, key=str) == [0, "inside"]
