"""self.gpu and self.lease, and the page that main and child share."""

import os
import time

import pytest
from celery import Celery, Task
from celery.app.trace import build_tracer
from celery.exceptions import Ignore

from celery_gpulease import GPULease, GPUTask, lease
from celery_gpulease.lease import Board
from celery_gpulease.model import GPU, Claim
from celery_gpulease.settings import Settings


def test_the_child_sees_what_the_heartbeat_wrote_after_the_fork():
    board = Board()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading, 1)
        os._exit(10 * board.is_lost(7) + (board.renewed_at(5) == 2.5))
    board.write_lost(7)
    board.write_renewed(5, 2.5)
    os.write(writing, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 11


def test_what_was_lost_stays_lost_whatever_is_renewed_later():
    board = Board()
    board.write_lost(7)
    board.write_renewed(9, 1.0)
    board.write_lost(3)
    assert [board.is_lost(fence) for fence in (3, 7, 8, 9)] == [True, True, False, False]


def test_main_sees_that_the_child_has_released_its_own_fence_and_no_other():
    board = Board()
    child = os.fork()
    if child == 0:
        board.write_child(released_fence=9)
        os._exit(0)
    os.waitpid(child, 0)
    assert board.is_released(9)
    assert not board.is_released(8)


def test_run_eagerly_or_called_as_a_function_a_task_has_no_lease():
    app = Celery("eager", broker="redis://nowhere.invalid", set_as_current=False)
    GPULease(app)

    @app.task(base=GPUTask, bind=True)
    def look(self, x):
        self.lease.check()
        self.lease.release()
        return self.gpu.id, self.gpu.index, self.lease.fence, self.lease.lost, self.request.id is not None, x

    assert look(1) == (None, None, None, False, False, 1)
    assert look.apply((2,)).get() == (None, None, None, False, True, 2)


def test_with_task_always_eager_nothing_of_redis_is_needed():
    app = Celery("eager", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_always_eager = True
    GPULease(app)

    @app.task(base=GPUTask, bind=True, shared=False)
    def look(self, x):
        return self.gpu.id, x

    assert look.delay(3).get() == (None, 3)


@pytest.mark.parametrize(("fence", "runs"), [(5, False), (6, True)])
def test_a_run_that_main_gave_up_before_it_began_never_runs_and_a_robbed_one_does(monkeypatch, fence, runs):
    monkeypatch.setattr(lease, "board", Board())
    lease.board.write_given_up(5)
    lease.board.write_lost(6)  # its ticket is still its own
    app, ran = Celery("late", broker="memory://", set_as_current=False), []
    GPULease(app)

    @app.task(base=GPUTask, bind=True, shared=False)
    def work(self):
        ran.append(self.lease.fence)

    claim = Claim("ticket", "n:0", "token", fence, 1)
    lease.begin(lease.Run("one", GPU("n:0", 0), lease.Lease(None, claim)))
    trace = build_tracer(work.name, work, app=app)
    trace("one", (), {}, {"id": "one", "is_eager": False, "called_directly": False})
    lease.end()
    assert ran == ([fence] if runs else [])


class Elsewhere:
    """A ledger that says of every run that its task runs elsewhere."""

    settings = Settings()

    def is_elsewhere(self, claim):
        return True


class Own(GPUTask):
    """A base of a user's own, as Celery's guide has it: without super."""

    abstract = True

    def __call__(self, *args, **kwargs):
        return ("own", self.run(*args, **kwargs))


class Around:
    def __call__(self, *args, **kwargs):
        return ("around", super().__call__(*args, **kwargs))


class Beside(Task):
    abstract = True

    def __call__(self, *args, **kwargs):
        return ("beside", super().__call__(*args, **kwargs))


BASES = {
    "own": Own,
    "around": type("AroundTask", (Around, GPUTask), {"abstract": True}),
    "beside": type("BesideTask", (GPUTask, Beside), {"abstract": True}),
}


@pytest.mark.parametrize(("word", "base"), BASES.items(), ids=BASES)
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_lost_run_stores_nothing_whatever_call_its_task_has(word, base, is_lost, monkeypatch):
    app = Celery("own", broker="redis://nowhere.invalid", set_as_current=False)
    task = app.task(base=base, name="own.task", shared=False)(identity)
    claim = Claim("ticket", "n:0", "token", 1_000_000 + len(word), 1)
    monkeypatch.setattr(lease, "board", Board())
    monkeypatch.setattr(lease, "_current", lease.Run("id", GPU("n:0", 0), lease.Lease(Elsewhere(), claim)))
    lease.board.write_renewed(claim.fence, time.monotonic())
    task.push_request(id="id", called_directly=False, is_eager=False)
    assert task(1) == (word, 1)
    lease.current("id").is_guarded = False
    if is_lost:
        lease.board.write_lost(claim.fence)
        with pytest.raises(Ignore, match="stores nothing"):
            task(1)


@pytest.mark.parametrize("seconds", [0, 3600])
def test_a_process_that_begins_long_after_start_asks_whose_the_task_is_before_it_runs_anything(monkeypatch, seconds):
    """Main was stopped with the message in its hands; its heartbeat has not looked yet."""
    monkeypatch.setattr(lease, "board", Board())
    claim, ran = Claim("ticket", "n:0", "token", 7, 1), []
    lease.board.write_renewed(claim.fence, time.monotonic() - seconds)
    app = Celery("stopped", broker="redis://nowhere.invalid", set_as_current=False)

    @app.task(base=GPUTask, shared=False)
    def task():
        ran.append(1)

    monkeypatch.setattr(lease, "_current", lease.Run("id", GPU("n:0", 0), lease.Lease(Elsewhere(), claim)))
    task.push_request(id="id", called_directly=False, is_eager=False)
    if seconds:
        with pytest.raises(Ignore, match="it began after"):
            task()
    else:
        task()
    assert ran == [1] * (seconds == 0)


def identity(x):
    return x


def test_a_run_is_that_of_its_own_ledger_only(monkeypatch):
    ledger = Elsewhere()
    monkeypatch.setattr(lease, "_current", lease.Run("id", GPU("n:0", 0), lease.Lease(ledger, None)))
    assert lease.current("id") is lease.current("id", ledger) is not None
    assert lease.current("id", Elsewhere()) is None
