"""The whole of it as a user runs it: a broker, a result backend, a worker per GPU, and what is killed or restarted.

Each setup takes seconds: so each test walks a long way.
"""

import pytest

from tests.smoke.stage import LONG
from tests.smoke.tasks import hold
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's Redis backend


def test_each_gpu_runs_one_task_the_next_waits_and_a_revoked_one_leaves_its_place(stage):
    first, second, third, fourth = (stage.send() for _ in range(4))
    runs = [stage.run_of(first), stage.run_of(second)]
    assert {run.gpu for run in runs} == {*stage.gpus}
    assert [run.visible for run in runs] == [str(run.index) for run in runs]
    waiting = stage.ask(stage.setup.worker, "pending")
    assert [row["task_id"] for row in waiting] == [third.id, fourth.id]
    assert third.state == fourth.state == "PENDING"

    fourth.revoke()
    wait_until(lambda: fourth.state == "REVOKED", LONG, "the end of what was held")
    assert stage.end(first) == [runs[0].gpu]
    stage.worker(runs[0].gpu).assert_log_exists(f"{hold.name}[{first.id}] succeeded")
    follower = stage.run_of(third)
    assert (follower.gpu, follower.fence > runs[0].fence) == (runs[0].gpu, True)

    fifth = stage.send()
    second.revoke(terminate=True)
    wait_until(lambda: second.state == "REVOKED", LONG, "the end of what ran")
    assert stage.run_of(fifth).gpu == runs[1].gpu
    assert stage.end(third, fifth) == [runs[0].gpu, runs[1].gpu]
    assert stage.how_often(fourth) == 0
    assert {row["state"] for row in stage.ask(stage.setup.worker, "status")["gpus"]} == {"free"}


def test_what_a_killed_container_or_child_ran_runs_again_and_the_gpu_serves_again(stage):
    task = stage.send()
    gpu = stage.run_of(task).gpu
    worker, other = stage.worker(gpu), stage.other(gpu)
    worker.kill()
    assert worker.container.status == "exited"
    assert stage.run_of(task, 2).gpu == other
    assert stage.end(task) == [other]
    assert stage.how_often(task) == 2

    worker.restart()
    pinned = stage.send(gpu=gpu)
    child = stage.run_of(pinned).pid
    code, said = worker.container.exec_run(f"python -c 'import os; os.kill({child}, 9)'")
    assert code == 0, said
    again = stage.run_of(pinned, 2)
    assert (again.gpu, again.pid != child) == (gpu, True)
    worker.assert_log_exists("SIGKILL")
    assert stage.end(pinned) == [gpu]


def test_sigterm_ends_what_runs_and_leaves_what_waits_to_the_other_gpu(stage):
    mine, others, held = (stage.send() for _ in range(3))
    gpu, other = stage.run_of(mine).gpu, stage.run_of(others).gpu
    worker, pinned = stage.worker(gpu), stage.send(gpu=gpu)
    worker.kill("SIGTERM")
    worker.assert_log_exists("Warm shutdown")
    assert stage.end(mine) == [gpu]
    wait_until(lambda: worker.container.reload() or worker.container.status == "exited", LONG, "the worker's end")
    assert stage.how_often(held) == 0

    assert stage.end(others) == [other]
    assert stage.run_of(held).gpu == other
    assert stage.how_often(pinned) == 0
    worker.restart()
    assert stage.run_of(pinned).gpu == gpu
    assert stage.end(held, pinned) == [other, gpu]
    assert [stage.how_often(task) for task in (mine, others, held, pinned)] == [1, 1, 1, 1]


def test_a_restarted_broker_costs_no_task_and_no_second_run(stage):
    tasks = [stage.send() for _ in range(3)]
    running, held = tasks[:2], tasks[2]
    gpus = [stage.run_of(task).gpu for task in running]
    stage.setup.broker.restart()
    assert stage.end(running[0]) == gpus[:1]
    assert stage.run_of(held).gpu == gpus[0]
    later = stage.send()
    assert stage.end(running[1], held) == [gpus[1], gpus[0]]
    assert stage.end(later)[0] in gpus
    assert [stage.how_often(task) for task in (*tasks, later)] == [1, 1, 1, 1]
