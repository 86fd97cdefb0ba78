"""Time and order of GPU tasks. Between two looks of a worker lies a minute here: what happens sooner was told of."""

import os
import signal
from contextlib import closing
from datetime import datetime, timedelta, timezone

import pytest

from tests.faults.world import HOST, LONG, SOON, now
from tests.semantics.steering import NOWHERE, Lab
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's result backend

SELDOM = {"gpulease_lease_ttl": 180.0, "gpulease_heartbeat_interval": 60.0, "gpulease_reconcile_interval": 600.0}


@pytest.fixture(scope="module")
def shared(server_binary, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPULEASE_HOST", HOST)
        with closing(Lab(server_binary, tmp_path_factory.mktemp("order"), **SELDOM)) as lab:
            yield lab


@pytest.fixture
def lab(shared):
    """Two workers, which the tests share."""
    yield shared
    shared.rest()


@pytest.fixture
def taken(lab):
    """A stranger has both GPUs, and gives GPU 0 back when it is asked to."""
    for gpu in (0, 1):
        lab.world.take(gpu)
    yield lambda: lab.world.give(0)
    lab.world.give(1)


def order(lab, tasks):
    """These tasks, as they have run."""
    lab.world.succeeds(*tasks)
    return [run.task for run in lab.world.runs() if run.task in tasks]


def test_a_countdown_and_an_eta_are_waited_for_to_the_second(lab):
    moment = datetime.now(timezone.utc) + timedelta(seconds=2)
    later, sooner = lab.send("add", 1, 2, eta=moment), lab.send("add", 3, 4, countdown=1)
    assert order(lab, [later, sooner]) == [sooner, later]
    (run,) = lab.world.runs(later)
    assert run.start >= moment.timestamp()
    assert datetime.fromisoformat(run.facts["eta"]) == moment


def test_an_eta_in_the_past_is_now(lab):
    task = lab.send("add", 1, 2, eta=datetime(2001, 1, 1, tzinfo=timezone.utc))
    assert order(lab, [task]) == [task]


def test_an_eta_years_ahead_is_kept(lab):
    moment = datetime(2145, 7, 1, tzinfo=timezone.utc)
    task = lab.send("add", 1, 2, eta=moment)
    assert lab.world.client.zrange("gpu:scheduled", 0, 0, withscores=True)[0][1] == moment.timestamp() * 1000
    lab.world.app.control.revoke(task)
    lab.is_revoked(task)


@pytest.mark.parametrize("number", [300, pytest.param(5000, marks=pytest.mark.long)])
def test_thousands_are_due_at_once_and_enter_the_line_in_due_order(lab, number):
    hour = datetime.now(timezone.utc) + timedelta(hours=1)
    signature = lab.world.app.signature("proj.add", (1, 2))
    moments = [hour + timedelta(milliseconds=n // 4) for n in reversed(range(number))]
    tasks = [signature.apply_async(pool=NOWHERE, eta=moment).id for moment in moments]
    with lab.world.client.pipeline() as pipe:  # the hour has passed
        for ticket, due_ms in lab.world.client.zrange("gpu:scheduled", 0, -1, withscores=True):
            pipe.zadd("gpu:scheduled", {ticket: due_ms - 3_600_000})
        pipe.execute()
    lab.world.ledger.wake("due")
    wait_until(lambda: lab.world.client.zcard(f"gpu:pending:{NOWHERE}") == number, SOON, "all to be in line")
    tickets = lab.world.client.zrange(f"gpu:pending:{NOWHERE}", 0, -1)
    due = [int(lab.world.client.hget(f"gpu:ticket:{ticket}", "eta_ms")) for ticket in tickets]
    assert due == sorted(due)
    lab.world.app.control.revoke(tasks)
    wait_until(lambda: not lab.world.client.zcard("gpu:ending"), LONG, "all to end")


EXPIRING = {
    "in line": {"pool": NOWHERE},
    "before it is due": {"countdown": 3600},
    "pinned to a gpu that no worker serves": {"gpu": "elsewhere:3"},
}


@pytest.mark.parametrize("where", EXPIRING)
def test_what_expires_while_it_is_held_is_revoked_at_that_moment(lab, where):
    long = lab.send("add", 1, 2, pool=NOWHERE, expires=3600)  # a later moment, of which was told before
    task = lab.send("add", 1, 2, expires=1, **EXPIRING[where])
    lab.is_revoked(task, expired=True)
    lab.world.app.control.revoke(long)


def test_what_expires_behind_a_running_task_is_revoked_while_that_runs(lab):
    busy = [lab.send("wait_for", "go on", gpu=f"{HOST}:{gpu}") for gpu in (0, 1)]
    for one in busy:
        lab.world.started(one)
    task = lab.send("add", 1, 2, expires=1)
    lab.is_revoked(task, expired=True)
    assert [lab.world.runs(one)[0].end for one in busy] == [None, None]
    lab.world.open("go on")


def test_with_beat_and_no_living_worker_what_expires_is_revoked(server_binary, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with closing(Lab(server_binary, tmp_path, workers=0)) as lonely:
        task = lonely.send("add", 1, 2, expires=0.1)
        lonely.background("beat", "-s", str(tmp_path / "schedule"))
        lonely.world.ends(task, "REVOKED")
        lonely.world.wait(lambda: lonely.noted(task), SOON, task)
        lonely.rest()


def test_the_lower_number_goes_first_and_within_a_priority_who_came_first(lab, taken):
    sent = [(lab.send("add", n, n, priority=priority), priority) for n, priority in enumerate([9, 3, 0, 4, 3, 255, 0])]
    taken()
    expected = [task for task, priority in sorted(sent, key=lambda one: one[1])]
    assert order(lab, expected) == expected


def test_a_bumped_task_stands_by_its_arrival_within_its_new_priority(lab, taken):
    first, second, third = (lab.send("add", n, n, priority=priority) for n, priority in enumerate([5, 7, 5]))
    lab.world.ledger.bump(second, 5)
    taken()
    assert order(lab, [first, second, third]) == [first, second, third]


def test_a_head_that_fits_no_free_gpu_blocks_nobody(lab):
    lab.world.take(1)
    heads = [
        lab.send("add", 1, 2, priority=0, gpu=f"{HOST}:1"),
        lab.send("add", 1, 2, priority=0, pool=NOWHERE),
        lab.send("add", 1, 2, priority=0, countdown=3600),
        lab.send("add", 1, 2, priority=0, gpu="elsewhere:3"),
    ]
    following = lab.send("add", 3, 4, priority=9)
    lab.world.succeeds(following)
    assert [lab.world.runs(task) for task in heads] == [[]] * 4
    lab.world.give(1)
    lab.world.succeeds(heads[0])
    lab.world.app.control.revoke(heads)


def test_a_requeued_task_stands_at_its_old_place(lab, taken):
    tasks = [lab.send("wait_for", f"turn {n}", gpu=f"{HOST}:0") for n in range(3)]
    taken()
    run = lab.world.started(tasks[0])
    os.kill(run.pid, signal.SIGKILL)
    lab.world.started(tasks[0], number=2)
    for n in range(3):
        lab.world.open(f"turn {n}")
    assert order(lab, tasks) == [tasks[0], *tasks]


def test_a_rate_limited_task_holds_no_lease_while_it_waits(lab):
    rare = [lab.send("rare", gpu=f"{HOST}:0") for _ in range(4)]
    wait_until(lambda: lab.world.client.zcard("gpu:scheduled") == 3, SOON, "three of them to wait")
    wait_until(lambda: not lab.world.lease(0), SOON, "the GPU to be free")
    sent, other = now(), lab.send("add", 1, 2, gpu=f"{HOST}:0")
    lab.world.succeeds(other, *rare)
    starts = [lab.world.runs(task)[0].start for task in rare]
    assert starts == sorted(starts)
    assert sent < lab.world.runs(other)[0].start < starts[-1]
