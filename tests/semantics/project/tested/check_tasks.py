"""What users test of their tasks: each fixture."""

import proj
import pytest
from celery import chain, chord
from proj import add, again, app, early, hang, may_end, plain, total, train, where

from celery_gpulease import ConfigurationError, LeaseLost
from celery_gpulease.testing import start_gpu_worker

SOON = 10


@pytest.fixture(autouse=True)
def _untouched():
    """Each test begins with the app as the project made it."""
    assert app.conf.broker_url == app.conf.result_backend == proj.NOWHERE
    assert app.conf.broker_transport_options == {"global_keyprefix": "production:"}
    assert app.gpulease.settings.host == "production"
    may_end.clear()


@pytest.mark.parametrize("turn", [1, 2])
def test_it_runs_under_a_lease(gpu_worker, turn):
    device = [gpu_worker.gpu.id, gpu_worker.gpu.index]
    assert device == ["testhost:0", 0]
    assert gpu_worker.pools == ("default", "a100")
    first, second = (where.delay().get(timeout=SOON) for _ in range(2))
    assert first[:2] == second[:2] == device
    assert first[3] == "0"
    assert 0 < first[2] < second[2]


@pytest.mark.gpu_worker(gpu=3, host="node7", pools="a100,fast")
def test_the_mark_says_which_gpu(gpu_worker, gpu_ledger):
    assert where.delay().get(timeout=SOON)[:2] == ["node7:3", 3]
    assert [gpu["id"] for gpu in gpu_ledger.status()["gpus"]] == ["node7:3"]
    assert gpu_ledger.status()["gpus"][0]["pools"] == ["a100", "fast"]


def test_canvas_and_retries_work(gpu_worker):
    assert chain(add.s(1, 2), add.s(3)).delay().get(timeout=SOON) == 6
    assert chord([add.s(1), add.s(2)], total.s()).delay().get(timeout=SOON) == 3
    assert again.delay().get(timeout=SOON) == 1
    assert early.delay().get(timeout=SOON) == "testhost:0"


def test_what_is_sent_without_waiting_can_be_waited_for(gpu_worker, monkeypatch):
    saved = []
    monkeypatch.setattr(proj, "save", saved.append)
    for _ in range(3):
        train.delay(2)
    chain(train.si(1), train.si(1)).delay()
    gpu_worker.wait_until_idle()
    assert saved == [0, 1] * 3 + [0, 0]


def test_who_waits_for_what_does_not_end_is_told(gpu_worker):
    hang.delay()
    add.delay(1)
    with pytest.raises(AssertionError, match=r"testhost:0 to be idle; .*proj.hang\[.* wait: proj.add\["):
        gpu_worker.wait_until_idle(timeout=0.5)
    may_end.set()
    gpu_worker.wait_until_idle()


def test_a_lease_is_lost_while_the_test_looks_on(gpu_worker):
    result, behind = train.delay(), add.delay(1, 2)
    gpu_worker.expire_lease()
    with pytest.raises(LeaseLost, match="testhost:0"):
        result.get(timeout=SOON)
    assert behind.get(timeout=SOON) == 3, "the GPU is there for the next"


def test_a_lease_is_lost_at_a_certain_step(gpu_worker, monkeypatch):
    steps = []

    def save(step):
        steps.append(step)
        if step == 2:
            gpu_worker.expire_lease()

    monkeypatch.setattr(proj, "save", save)
    with pytest.raises(LeaseLost):
        train.delay().get(timeout=SOON)
    assert steps == [0, 1, 2]


def test_no_lease_ends_where_no_task_runs(gpu_worker):
    with pytest.raises(AssertionError, match="a task that runs on GPU testhost:0"):
        gpu_worker.expire_lease(timeout=0.1)


def test_what_is_sent_is_held(gpu_ledger):
    where.apply_async(priority=3, task_id="low")
    where.apply_async(priority=1, task_id="high")
    where.apply_async(countdown=60, task_id="later")
    assert [(row["task_id"], row["pool"], row["position"]) for row in gpu_ledger.pending()] == [
        ("high", "a100", 1),
        ("low", "a100", 2),
        ("later", "a100", None),
    ]


def test_nothing_is_left_of_the_test_before(gpu_ledger):
    assert gpu_ledger.pending() == gpu_ledger.status()["gpus"] == []


def test_a_wrong_pool_is_refused_in_our_words(gpu_ledger):
    with pytest.raises(ConfigurationError, match="pool 'a b'"), start_gpu_worker(gpu_ledger, pools=["a b"]):
        pass
    with start_gpu_worker(gpu_ledger, gpu=1):
        assert where.delay().get(timeout=SOON)[1] == 1


def test_a_second_worker_is_refused(gpu_worker, gpu_ledger):
    with pytest.raises(RuntimeError, match="serves GPU testhost:0 already"), start_gpu_worker(gpu_ledger, gpu=1):
        pass
    assert add.delay(1, 2).get(timeout=SOON) == 3


def run_by_apply(task, *args):
    return task.apply(args, throw=True).get()


def run_eagerly(task, *args):
    before = app.conf.task_always_eager
    app.conf.task_always_eager = True
    try:
        return task.delay(*args).get()
    finally:
        app.conf.task_always_eager = before


@pytest.mark.parametrize("run", [run_by_apply, run_eagerly, lambda task, *args: task(*args)])
def test_a_stand_in_is_what_a_task_without_a_lease_sees(gpu_stand_in, run):
    assert run(where)[:3] == ["testhost:0", 0, 1]
    gpu_stand_in.gpu.id, gpu_stand_in.gpu.index, gpu_stand_in.lease.fence = "GPU-1", 5, 12
    assert run(where)[:3] == ["GPU-1", 5, 12]

    gpu_stand_in.lease.checks = 0
    gpu_stand_in.lease.lost_at_check = 3
    with pytest.raises(LeaseLost, match=r"GPU-1 \(fence 12\)"):
        run(train)
    assert gpu_stand_in.lease.checks == 3
    assert gpu_stand_in.lease.lost

    assert run(early) == "GPU-1", "a lease that was given back is not lost"
    assert gpu_stand_in.lease.is_released


def test_a_stand_in_can_be_lost_from_the_beginning(gpu_stand_in):
    gpu_stand_in.lease.lost = True
    with pytest.raises(LeaseLost):
        where()


def test_without_a_stand_in_there_is_no_lease():
    assert where()[:3] == [None, None, None]


def test_a_stand_in_beside_a_worker_is_for_tasks_without_a_lease(gpu_worker, gpu_stand_in):
    gpu_stand_in.gpu.id = "node7:1"
    assert where()[0] == "node7:1"
    assert where.delay().get(timeout=SOON)[0] == "testhost:0"


@pytest.mark.filterwarnings("ignore")
def test_a_plain_task_is_not_for_the_gpus_worker(gpu_worker, gpu_ledger):
    plain.delay(1)
    gpu_worker.wait_until_idle()
    assert gpu_ledger.ledger.client.llen("celery") == 1
