"""self.gpu and self.lease, and the page that main and child share."""

import os

from celery import Celery

from celery_gpulease import GPULease, GPUTask
from celery_gpulease.lease import Board


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
