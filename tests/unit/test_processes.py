"""A worker is certainly dead where all its processes are gone and we can know it; else we say neither."""

import os
import select
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from celery_gpulease.model import Presence
from celery_gpulease.worker import processes
from celery_gpulease.worker.processes import (
    is_certainly_alive,
    is_certainly_dead,
    is_gone,
    open_living,
    realm,
    started_at,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not realm(), reason="the kernel does not tell: no Linux, or a foreign /proc")


@pytest.fixture
def living():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def gone():
    """The pid of a process that is over, and when it began."""
    with subprocess.Popen(["sleep", "600"]) as process:
        told = process.pid, started_at(process.pid)
        process.kill()
    return told


def presence(main, *children, **other):
    pid, started = main
    return Presence(
        "i", "gpu0@n", "n", pid, "1", **{"realm": realm(), "started": started, "children": children, **other}
    )


def known(process):
    return process.pid, started_at(process.pid)


def test_all_gone_is_dead(gone):
    one = presence(gone, gone)
    assert (is_certainly_dead(one), is_certainly_alive(one)) == (True, False)


def test_a_living_main_process_is_alive(living, gone):
    one = presence(known(living), gone)
    assert (is_certainly_dead(one), is_certainly_alive(one)) == (False, True)


def test_a_child_that_outlives_its_main_process_is_neither(living, gone):
    one = presence(gone, known(living))
    assert (is_certainly_dead(one), is_certainly_alive(one)) == (False, False)


def test_another_process_with_its_pid_is_not_it(living, gone):
    pid, started = known(living)
    one = presence((pid, started - 1), (pid, started + 1))
    assert (is_certainly_dead(one), is_certainly_alive(one)) == (True, False)


def test_a_process_whose_start_is_not_known_is_gone_only_when_its_pid_is(living, gone):
    one = presence((living.pid, 0))
    assert (is_certainly_dead(one), is_certainly_alive(one)) == (False, False)
    assert is_certainly_dead(presence((gone[0], 0)))


def test_one_that_waits_for_its_parent_to_ask_is_gone():
    process = subprocess.Popen(["true"])
    told = known(process)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_certainly_dead(presence(told))
    process.wait()


def test_a_main_thread_that_is_over_does_not_speak_for_the_others(tmp_path):
    """As when a thread hangs in a driver: the process shows as a zombie, and has not let go of anything."""
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print(flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        told = known(process)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, 10, "the main thread to end")
        assert not is_gone(*told)
        assert not is_certainly_dead(presence(told))
        process.kill()


def test_one_that_is_stopped_is_alive(living):
    told = known(living)
    living.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(living.pid).status() == psutil.STATUS_STOPPED, 10, "it to stop")
    assert is_certainly_alive(presence(told))


@pytest.mark.parametrize("elsewhere", ["", "another boot", "another namespace"])
def test_of_another_realm_nothing_is_known(gone, living, elsewhere):
    boot, pid, time = realm().split(" ")
    other = {"": "", "another boot": f"0{boot} {pid} {time}", "another namespace": f"{boot} pid:[1] {time}"}[elsewhere]
    for main in (gone, known(living)):
        one = presence(main, realm=other)
        assert (is_certainly_dead(one), is_certainly_alive(one)) == (False, False)


def test_our_own_process_is_neither(gone):
    """SIGHUP puts a new worker into the old one's process; and a test may have two in one."""
    one = presence((os.getpid(), started_at(os.getpid())))
    assert (is_certainly_dead(one), is_certainly_alive(one)) == (False, False)


def test_where_proc_shows_another_namespace_a_process_is_of_no_realm():
    script = "from celery_gpulease.worker.processes import realm; print(repr(realm()))"
    other = [sys.executable, "-c", script]
    told = subprocess.run(["unshare", "--pid", "--fork", *other], capture_output=True, text=True, check=False)
    if told.returncode:
        pytest.skip(f"unshare: {told.stderr.strip()}")
    assert told.stdout.strip() == "''"


def test_a_process_begins_after_its_parent(living):
    assert 0 < started_at(os.getpid()) <= started_at(living.pid)


def test_where_no_realm_can_be_read_nobody_is_dead(gone, living, monkeypatch):
    monkeypatch.setattr(processes, "_PIDS", processes.re.compile("no such line"))
    for main in (gone, known(living)):
        one = presence(main, realm=realm())
        assert (one.realm, is_certainly_dead(one), is_certainly_alive(one)) == ("", False, False)


@pytest.mark.parametrize("name", ["sleep (x) Z 1", "a\nb"])
def test_a_name_like_a_line_of_proc_misleads_nobody(name, tmp_path):
    path = tmp_path / name
    path.symlink_to("/bin/sleep")
    with subprocess.Popen([str(path), "600"]) as process:
        assert not is_gone(*known(process))
        process.kill()


def test_what_an_older_worker_said_is_read():
    old = '{"instance": "i", "worker": "w", "host": "h", "pid": 1, "version": "0.1"}'
    one = Presence.from_json(old)
    assert one == Presence("i", "w", "h", 1, "0.1")
    assert (is_certainly_dead(one), is_certainly_alive(one)) == (False, False)


def test_what_a_newer_worker_says_is_read():
    new = '{"instance": "i", "worker": "w", "host": "h", "pid": 1, "version": "9", "children": [[5, 6]], "mood": 1}'
    assert Presence.from_json(new) == replace(Presence("i", "w", "h", 1, "9"), children=((5, 6),))


class Pool:
    """As Celery's: `info` is what `inspect stats` shows."""

    def __init__(self, info, *, active=True):
        self.info, self.active = info, active


def test_a_pools_processes_are_those_beside_our_own():
    assert processes.child_pids(Pool({"processes": [7, None, os.getpid()]})) == [7]
    assert processes.child_pids(Pool({"threads": 1})) == []
    assert processes.child_pids(Pool({"processes": [7]}, active=False)) == []


def readable(pidfd):
    found = select.select([pidfd], [], [], 10)[0] == [pidfd]
    os.close(pidfd)
    return found


def test_the_end_of_a_living_process_is_told_by_a_descriptor(living, gone):
    pidfd = open_living(presence(gone, known(living)))
    assert select.select([pidfd], [], [], 0)[0] == []
    living.kill()
    assert readable(pidfd)


def test_there_is_none_for_what_is_gone_or_out_of_sight_or_another_process(living, gone):
    pid, started = known(living)
    for one in (presence(gone), presence((pid, started), realm="elsewhere"), presence((pid, started - 1))):
        assert open_living(one) is None


def test_what_lives_is_seen_with_its_name_and_group(living, gone):
    seen = {one.pid: one for one in processes.living()}
    assert (seen[living.pid].name, seen[living.pid].group) == ("sleep", os.getpgid(living.pid))
    assert gone[0] not in seen


def test_what_a_process_has_started_descends_from_it(living, gone):
    with subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE) as shell:
        grandchild = int(shell.stdout.readline())
        for pid in (os.getpid(), shell.pid, grandchild):
            assert processes.descends(pid, os.getpid())
        for pid, ancestor in ((living.pid, shell.pid), (1, os.getpid()), (gone[0], os.getpid())):
            assert not processes.descends(pid, ancestor)
        os.kill(grandchild, signal.SIGKILL)
    assert (processes.name_of(living.pid), processes.name_of(gone[0])) == ("sleep", "")
