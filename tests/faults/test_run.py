"""`gpulease run -- CMD` and `reserve`: any program under a lease, beside real workers and where none lives."""

import json
import os
import pty
import signal
import sys
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

from celery_gpulease import ConfigurationError, LeaseLost, TurnTimeout, reserve
from celery_gpulease.model import Device, Presence
from celery_gpulease.programs.group import Group
from celery_gpulease.reconcile.gpus import correct_gpus
from tests.faults.conftest import world_on
from tests.faults.faults import Fault
from tests.faults.world import HOST, LONG, PROJECT, SOON, kill
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's result backend

GPU = f"{HOST}:0"

# Tells when it begins and what it sees; ends when a file of the name is there.
PROGRAM = """
import os, sys, time
print("begun", time.time(), os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("ended", time.time(), flush=True)
"""
# Its child outlives a program that is killed alone.
PARENT = 'sleep 1000 & echo "child $!"; echo "begun"; wait'
TRAP = """
for one in HUP INT QUIT USR1; do trap "echo told-$one" $one; done
trap "exit 5" TERM
echo begun
while :; do sleep 0.02; done
"""

ASKS = """
print("you said", input())
try:
    input()
except KeyboardInterrupt:
    exit(9)
"""


def run(world, *program, options=()):
    """`gpulease run`, on its way."""
    command = ("celery", "-A", "proj", "gpulease", "run", *options, "--", *program)
    return world.processes.start(*command, name="run")


def waits_for(world, gate, *options):
    """A program that runs until the gate is open."""
    return run(world, sys.executable, "-c", PROGRAM, str(world.folder / gate), options=options)


def says(process, word):
    """The rest of the line that begins with a word, once it is there."""

    def found():
        return next((line.split()[1:] for line in process.output.splitlines() if line.split()[:1] == [word]), None)

    wait_until(lambda: found() is not None or process.exit_code is not None, LONG, f"{word!r} from {process!r}")
    assert found() is not None, process
    return found()


def standing(world, number=1):
    """Waits until so many stand in line; their ids."""

    def found():
        rows = json.loads(world.gpulease("pending", "--json").output)
        return [row["task_id"] for row in rows] if len(rows) == number else None

    return wait_until(found, LONG, f"{number} who wait")


def ends(process, code):
    """It ends with this exit code."""
    assert process.wait() == code, process


def is_gone(pid):
    """Is this process over? Who would wait for it may be nobody here."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def unserved(world):
    """A world whose GPU a worker has served once."""
    presence = Presence("gone", f"gpu0@{HOST}", HOST, 1, "1")
    world.ledger.join(Device(GPU, 0, HOST), ("default",), presence)
    world.ledger.leave(GPU, presence)
    return world


def test_its_turn_comes_in_order_among_the_tasks_and_its_gpu_is_its_own_for_longer_than_a_ttl(world):
    world.worker(0)
    busy = world.send("wait_for", "busy")
    world.started(busy)
    program = waits_for(world, "program", "--priority", "4")
    (ticket,) = standing(world)
    program.wait_for_log(f"`gpulease cancel {ticket}` takes it back")
    after, before = world.send("add", 1, 2, priority=5), world.send("add", 1, 2, priority=3)
    world.open("busy")
    begun, visible, order = says(program, "begun")
    row = world.row(0)
    assert (row["state"], row["task_id"], row["worker"]) == ("leased", ticket, f"gpu0@{HOST}")
    assert row["task"].startswith("run: ")
    first = world.lease(0)
    deadline = time.time() + 1.5 * world.conf["gpulease_lease_ttl"]
    wait_until(lambda: time.time() > deadline, LONG, "more than a ttl to pass")
    assert (world.lease(0), world.runs(after)) == (first, [])
    world.open("program")
    ends(program, 0)
    world.succeeds(busy, before, after)
    assert (visible, order) == ("0", "PCI_BUS_ID")
    assert world.runs(before)[0].end <= float(begun)
    assert float(says(program, "ended")[0]) <= world.runs(after)[0].start


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "trap '' TERM; kill $$; exit 0"], 0),
        (["/no/such"], 127),
        (["/"], 126),
    ],
)
def test_its_exit_code_is_passed_on_as_shells_do_also_where_no_worker_lives(unserved, program, code):
    ends(run(unserved, *program), code)
    assert unserved.lease(0) is None


def test_afterwards_why_and_the_journal_say_what_it_was_and_how_it_ended(unserved):
    ends(run(unserved, "sh", "-c", "exit 7"), 7)
    broken = unserved.folder / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    ends(run(unserved, str(broken)), 126)
    told = [one for one in json.loads(unserved.gpulease("journal", "--json").output) if one["what"] == "released"]
    assert [one["detail"] for one in told] == ["exit code 7", "it could not be started: Exec format error"]
    first, _ = (one["task_id"] for one in told)
    assert unserved.gpulease("why", first).output.startswith(
        f"run: sh -c 'exit 7'[{first}] has ended: exit code 7; it ran on {GPU}\n"
    )
    lines = [
        line for line in unserved.gpulease("journal").output.splitlines() if f"run: sh -c 'exit 7'[{first}]" in line
    ]
    assert lines[-1].endswith("it ended, and gave its GPU back: exit code 7")


def test_a_block_that_raised_says_what_and_not_its_words(unserved):
    with pytest.raises(ValueError, match="secret"), reserve(unserved.app):
        int("secret")
    (_, _, _, ended) = json.loads(unserved.gpulease("journal", "--json").output)
    assert ended["detail"] == "it raised ValueError"
    assert "] has ended: it raised ValueError; it ran on" in unserved.gpulease("why", ended["task_id"]).output


@pytest.mark.parametrize(
    ("program", "code"),
    [("no-such-program", 127), ("/no/such", 127), ("/etc/passwd", 126), ("/etc/passwd/x", 126), ("x" * 300, 127)],
)
def test_what_cannot_be_started_is_refused_before_it_waits(unserved, program, code):
    unserved.take(0)
    refused = run(unserved, program)
    ends(refused, code)
    assert (program[:100] in refused.log, "waiting" in refused.log) == (True, False)
    assert not unserved.gpulease("journal", "--json").output.count("held")
    unserved.give(0)


def test_a_folder_of_the_path_that_cannot_be_searched_keeps_nobody_from_hearing_that_there_is_no_program(
    unserved, monkeypatch
):
    folder = unserved.folder / ("x" * 300)  # too long a name: not even root can look there
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    refused = run(unserved, "no-such-program")
    ends(refused, 127)
    assert "no-such-program: command not found" in refused.log


def test_a_script_whose_interpreter_is_not_there_is_not_said_to_be_missing_itself(unserved):
    script = unserved.folder / "script"
    script.write_text("#!/no/such/interpreter")
    script.chmod(0o755)
    refused = run(unserved, str(script))
    ends(refused, 126)
    assert f"{script}: its interpreter was not found" in refused.log


def test_a_program_whose_runner_was_killed_is_told_of(unserved):
    program = run(unserved, "sleep", "1000")
    program.wait_for_log(f"GPU {GPU}")
    ticket = json.loads(unserved.gpulease("journal", "--json").output)[0]["task_id"]
    wait_until(lambda: unserved.client.hget(f"gpu:claim:{GPU}", "state") == "started", SOON, "the start")
    kill(program.pid)
    following = run(unserved, "true")
    ends(following, 0)
    told = unserved.gpulease("why", ticket).output
    assert told.startswith(
        f"run: sleep 1000[{ticket}] has ended: who ran it (`gpulease run`, `reserve`) died, or was cut"
    )


def test_signals_are_passed_on_and_the_program_answers(unserved):
    program = run(unserved, "sh", "-c", TRAP)
    says(program, "begun")
    for name in ("HUP", "INT", "QUIT", "USR1"):
        program.send(signal.Signals[f"SIG{name}"])
        says(program, f"told-{name}")
    program.send(signal.SIGTERM)
    ends(program, 5)


def test_a_program_that_a_signal_ends_is_told_as_shells_do(unserved):
    program = run(unserved, "sh", "-c", PARENT)
    child = int(says(program, "child")[0])
    program.send(signal.SIGTERM)
    ends(program, 143)
    assert is_gone(child)


def test_what_it_leaves_in_its_group_is_gone_before_the_next_begins(unserved):
    program = run(unserved, "sh", "-c", 'sleep 1000 & echo "child $!"')
    ends(program, 0)
    assert is_gone(int(says(program, "child")[0]))


@pytest.mark.parametrize("by", ["force", "stranger"])
def test_whose_lease_is_lost_is_stopped_with_all_that_it_started(world, by):
    world.worker(0)
    world.until_free(0)
    program = run(world, "sh", "-c", f"trap '' TERM; {PARENT}; sleep 1000")
    child = int(says(program, "child")[0])
    following = world.send("add", 1, 2)
    if by == "force":
        told = world.gpulease("release", GPU, "--force").output
        assert ("run: sh" in told, "is stopped" in told) == (True, True)
    else:
        with world.client.pipeline(transaction=True) as pipe:
            pipe.set(world.ledger.keys.lease(GPU), "stranger", px=60_000).execute()
    assert program.wait() == 137, program  # it heard SIGTERM and went on
    assert f"the lease of GPU {GPU} is lost" in program.log
    assert is_gone(child)
    if by == "stranger":
        assert world.lease(0) == "stranger"
        world.give(0)
    world.succeeds(following)


def test_killed_it_takes_its_program_along_and_its_gpu_is_given_to_the_next(world):
    world.worker(0)
    world.until_free(0)
    program = run(world, "sh", "-c", PARENT)
    child = int(says(program, "child")[0])
    following = world.send("add", 1, 2)
    kill(program.pid)
    wait_until(lambda: is_gone(child), SOON, "its program to be killed too")
    world.succeeds(following)


def test_killed_where_no_worker_lives_the_next_takes_its_gpu(unserved):
    program = waits_for(unserved, "never")
    says(program, "begun")
    following = waits_for(unserved, "following")
    standing(unserved)
    kill(program.pid)
    unserved.open("following")
    ends(following, 0)


def test_one_follows_another_at_once_where_no_worker_lives(unserved):
    first, second = waits_for(unserved, "first"), None
    says(first, "begun")
    second = waits_for(unserved, "second")
    standing(unserved)
    unserved.open("first")
    ends(first, 0)
    assert float(says(first, "ended")[0]) <= float(says(second, "begun")[0])
    unserved.open("second")
    ends(second, 0)


def test_killed_while_it_waits_it_leaves_nothing(world):
    world.worker(0)
    busy = world.send("wait_for", "busy")
    world.started(busy)
    program = run(world, "true")
    standing(world)
    following = world.send("add", 1, 2)
    kill(program.pid)
    world.open("busy")
    world.succeeds(busy, following)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_while_it_waits_it_is_out_of_line_at_once(unserved, number):
    unserved.take(0)
    program = run(unserved, "true")
    standing(unserved)
    program.send(number)
    ends(program, 128 + number)
    assert not unserved.client.keys("gpu:ticket:*")
    unserved.give(0)


def test_cancelled_it_says_so(unserved):
    unserved.take(0)
    program = run(unserved, "true")
    (ticket,) = standing(unserved)
    assert unserved.gpulease("cancel", ticket).output == f"task {ticket} is cancelled\n"
    ends(program, 1)
    assert "was cancelled while it waited" in program.log
    assert not unserved.client.exists(f"celery-task-meta-{ticket}")
    unserved.give(0)


def test_bumped_it_overtakes(world):
    world.worker(0)
    busy = world.send("wait_for", "busy")
    world.started(busy)
    task = world.send("add", 1, 2, priority=3)
    program = run(world, "sh", "-c", "date +'begun %s.%N'", options=("--priority", "5"))
    ticket = standing(world, 2)[1]
    world.gpulease("bump", ticket, "--priority", "0")
    world.open("busy")
    ends(program, 0)
    world.succeeds(busy, task)
    assert float(says(program, "begun")[0]) <= world.runs(task)[0].start


def test_whose_turn_does_not_come_in_time_leaves(unserved):
    unserved.take(0)
    program = run(unserved, "true", options=("--timeout", "0.5"))
    ends(program, 124)
    assert f"no GPU of pool default on {HOST} within 0.5 seconds" in program.log
    assert not unserved.client.keys("gpu:ticket:*")
    unserved.give(0)


def test_a_pool_that_no_gpu_of_this_host_serves_is_an_error_that_says_what_is_there(unserved):
    program = run(unserved, "true", options=("--pool", "a100"))
    ends(program, 1)
    assert f"no GPU of host {HOST} serves pool 'a100': {GPU} serves default. A GPU is registered" in program.log


def test_it_goes_on_where_the_worker_of_its_gpu_dies_and_a_new_one_waits_for_its_end(world):
    worker = world.worker(0)
    world.until_free(0)
    program = waits_for(world, "go")
    says(program, "begun")
    worker.kill()
    world.worker(0)
    task = world.send("add", 1, 2)
    assert list(correct_gpus(world.ledger, change=True)) == []
    assert (program.exit_code, world.runs(task)) == (None, [])
    world.open("go")
    ends(program, 0)
    world.succeeds(task)
    assert float(says(program, "ended")[0]) <= world.runs(task)[0].start


def test_redis_is_emptied_and_who_runs_and_who_waits_go_on(own_server, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(own_server.url, tmp_path, own_server) as world:
        world.worker(0)
        world.until_free(0)
        program = waits_for(world, "go")
        says(program, "begun")
        waiting = run(world, "true")
        standing(world)
        own_server.kill()
        own_server.start()
        wait_until(lambda: world.lease(0), LONG, "the lease to be taken back")
        standing(world)
        world.open("go")
        ends(program, 0)
        ends(waiting, 0)
        world.rest()


def test_redis_comes_back_as_it_was_before_it_began_and_its_gpu_is_given_to_nobody_else(
    own_server, tmp_path, monkeypatch
):
    """A task waits then, and a stranger's lease has just ended; the program is late, since it is stopped until then."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    patience = {"gpulease_lease_ttl": 90.0, "gpulease_heartbeat_interval": 25.0}
    with world_on(own_server.url, tmp_path, own_server, **patience) as world:
        world.worker(0)
        world.take(0, 600)
        task = world.send("add", 1, 2)
        with Fault.REDIS_FORGETS.during(world):
            world.gpulease("cancel", task)
            world.give(0)
            program = waits_for(world, "go")
            says(program, "begun")
            token = world.lease(0)
            os.kill(program.pid, signal.SIGSTOP)
        here = world.ledger.keys.here(GPU)
        wait_until(lambda: world.client.pubsub_numsub(here)[0][1], SOON, "the worker to be back")
        assert world.client.get(world.ledger.keys.want(GPU)) == "whoever had it when Redis forgot"
        world.give(0)
        os.kill(program.pid, signal.SIGCONT)
        wait_until(lambda: world.lease(0) == token, SOON, "the program to have its lease again")
        world.open("go")
        ends(program, 0)
        world.succeeds(task)
        (run_of_task,) = world.runs(task)
        assert float(says(program, "ended")[0]) <= run_of_task.start
        world.rest()


def test_stopped_for_longer_than_the_ttl_its_program_is_killed_before_another_has_the_gpu(world):
    world.worker(0)
    world.until_free(0)
    program = run(world, "sh", "-c", PARENT)
    child = int(says(program, "child")[0])
    following = world.send("add", 1, 2)
    os.kill(program.pid, signal.SIGSTOP)
    wait_until(lambda: is_gone(child), SOON, "its program to be killed")
    gone_at = time.time()
    world.succeeds(following)
    assert gone_at <= world.runs(following)[0].start
    os.kill(program.pid, signal.SIGCONT)
    ends(program, 137)
    program.wait_for_log("its program was killed")


def test_while_redis_is_away_for_longer_than_the_ttl_its_program_goes_on(own_server, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with world_on(own_server.url, tmp_path, own_server) as world:
        world.worker(0)
        world.until_free(0)
        program = waits_for(world, "go")
        says(program, "begun")
        with Fault.REDIS_STOPPED.during(world):
            until = time.time() + 2 * world.conf["gpulease_lease_ttl"]
            wait_until(lambda: time.time() > until, LONG, "twice a ttl to pass")
        wait_until(lambda: world.lease(0), SOON, "it to have its lease again")
        world.open("go")
        ends(program, 0)
        world.rest()


@contextmanager
def at_a_terminal(world, *program):
    """`gpulease run` where a person types: the terminal, and what ends the program."""
    command = (sys.executable, "-m", "celery", "-A", "proj", "gpulease", "run", "--", *program)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(PROJECT)
        os.execvpe(command[0], command, world.processes._env)
    os.set_blocking(terminal, False)
    try:
        yield terminal, lambda: os.waitpid(pid, os.WNOHANG)
    finally:
        os.close(terminal)
        with suppress(ProcessLookupError):
            kill(pid)


def shows(terminal, words):
    """Waits until these words are on the screen."""
    screen = b""

    def read():
        nonlocal screen
        with suppress(BlockingIOError, OSError):
            screen += os.read(terminal, 1000)
        return words in screen

    wait_until(read, LONG, f"{words!r} on a screen")


def test_it_has_the_terminal_and_ctrl_c_is_its_own(unserved):
    with at_a_terminal(unserved, sys.executable, "-c", ASKS) as (terminal, wait):
        os.write(terminal, b"hello\n")
        shows(terminal, b"you said hello")
        os.write(terminal, b"\x1a\x03")  # Ctrl-Z, which does nothing, and Ctrl-C
        _, status = wait_until(lambda: (ended := wait())[0] and ended, LONG, "its end")
    assert os.waitstatus_to_exitcode(status) == 9


def test_a_program_that_is_stopped_ends_when_it_is_told_to():
    group = Group(["sh", "-c", "kill -STOP $$"], os.environ)
    wait_until(lambda: psutil.Process(group.pid).status() == psutil.STATUS_STOPPED, SOON, "it to be stopped")
    group.send(signal.SIGTERM)
    assert group.wait() == 128 + signal.SIGTERM
    group.end()


# in Python


def test_reserved_in_a_block_it_is_seen_there_and_given_back_whatever_happens(unserved):
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012, SIM117
        with reserve(unserved.app) as gpu:
            assert (gpu.id, gpu.index, gpu.lost) == (GPU, 0, False)
            assert unserved.lease(0).endswith(f"-{gpu.fence}")
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
            assert unserved.row(0)["task"].startswith("reserve: ")
            1 / 0  # noqa: B018
    assert (unserved.lease(0), os.environ.get("CUDA_VISIBLE_DEVICES")) == (None, None)


def test_a_block_in_which_nothing_is_shown_any_more_ends_as_ever(unserved):
    with reserve(unserved.app):
        del os.environ["CUDA_VISIBLE_DEVICES"]
    assert (unserved.lease(0), os.environ.get("CUDA_VISIBLE_DEVICES")) == (None, None)


@pytest.mark.parametrize("priority", [-1, 256, 1.5, "1"])
def test_a_block_of_no_such_priority_does_not_begin(unserved, priority):
    with pytest.raises(ConfigurationError, match="from 0 to 255"), reserve(unserved.app, priority=priority):
        raise AssertionError


def test_a_child_that_leaves_the_block_gives_nothing_back(unserved):
    parent = os.getpid()
    try:
        with reserve(unserved.app) as gpu:
            if not (child := os.fork()):
                sys.exit(0)
            os.waitpid(child, 0)
            assert unserved.lease(0).endswith(f"-{gpu.fence}")
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert unserved.lease(0) is None


def test_a_block_whose_lease_is_lost_is_told(unserved):
    with reserve(unserved.app) as gpu:
        gpu.check()
        unserved.gpulease("release", GPU, "--force")
        wait_until(lambda: gpu.lost, SOON, "the block to be told")
        with pytest.raises(LeaseLost, match="went to another holder"):
            gpu.check()


def test_a_block_that_cannot_have_a_gpu_does_not_begin(unserved):
    with pytest.raises(ConfigurationError, match="serves pool 'a100'"), reserve(unserved.app, "a100"):
        raise AssertionError
    unserved.take(0)
    with pytest.raises(TurnTimeout), reserve(unserved.app, timeout=0.1):
        raise AssertionError
    unserved.give(0)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True])
def test_a_block_that_would_wait_for_no_such_time_does_not_begin(unserved, timeout):
    with pytest.raises(ConfigurationError, match="timeout must be seconds"), reserve(unserved.app, timeout=timeout):
        raise AssertionError
