"""With the app of Celery's own plugin, and its worker."""

import pytest
from celery import shared_task

from celery_gpulease import GPULease, GPUTask


@shared_task(base=GPUTask, bind=True)
def shared(self):
    return self.gpu.id


@pytest.fixture
def gpu_app(celery_app):
    GPULease(celery_app)
    return celery_app


def test_a_shared_task_runs_under_a_lease(gpu_worker):
    assert shared.delay().get(timeout=10) == "testhost:0"


def test_celerys_own_worker_still_works(celery_app, celery_worker):
    @celery_app.task
    def add(x, y):
        return x + y

    celery_worker.reload()
    assert add.delay(1, 2).get(timeout=10) == 3
