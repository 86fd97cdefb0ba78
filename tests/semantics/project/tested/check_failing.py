"""Tests that fail, each with a task that still runs: the next finds nothing of it."""

from proj import add, hang, may_end, train

SOON = 10


def test_fails_under_a_task_that_looks_at_its_lease(gpu_worker):
    train.delay()
    assert train.delay().ready()


def test_is_not_touched_by_that(gpu_worker, gpu_ledger):
    assert add.delay(1, 2).get(timeout=SOON) == 3
    assert gpu_ledger.pending() == []


def test_ends_under_a_task_that_does_not(gpu_worker, monkeypatch):
    monkeypatch.setattr("celery_gpulease.testing.worker.LONGEST_STOP", 0.3)
    hang.delay()
    while not gpu_worker.running.startswith("proj.hang["):
        pass


def test_cannot_have_a_worker_meanwhile(monkeypatch, request):
    monkeypatch.setattr("celery_gpulease.testing.worker.LONGEST_STOP", 0.3)
    request.getfixturevalue("gpu_worker")


def test_can_have_one_when_it_has_ended(request):
    may_end.set()
    assert add.delay
    request.getfixturevalue("gpu_worker")
    assert add.delay(1, 2).get(timeout=SOON) == 3
