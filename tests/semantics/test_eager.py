"""A task that is run here and now, not sent: as in Celery, and without a lease."""

import runpy
import sys
from pathlib import Path

import pytest
from celery import Celery, chain, chord, group

from celery_gpulease import GPULease, GPUTask

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def app():
    """An app whose broker and ledger nobody may ask."""
    with Celery("here", broker="redis://127.0.0.1:1", backend="cache+memory://", set_as_current=False) as app:
        app.conf.broker_connection_max_retries = 0
        GPULease(app)

        @app.task(base=GPUTask, bind=True, name="where", shared=False)
        def where(self, before=None):
            self.lease.check()
            self.lease.release()
            return [self.gpu.id, self.gpu.index, self.lease.fence, self.lease.lost, before]

        @app.task(base=GPUTask, bind=True, name="fail", max_retries=2, shared=False)
        def fail(self):
            raise self.retry(exc=ValueError(self.request.retries), countdown=3600)

        yield app


WITHOUT_A_LEASE = [None, None, None, False, None]


def test_called_as_a_function_it_has_no_lease(app):
    assert app.tasks["where"]() == WITHOUT_A_LEASE
    assert app.tasks["where"].run() == WITHOUT_A_LEASE


def test_applied_it_has_no_lease(app):
    assert app.tasks["where"].apply().get() == WITHOUT_A_LEASE
    assert app.tasks["where"].s().apply(priority=3, pool="a100", gpu="node7:0").get() == WITHOUT_A_LEASE


def test_always_eager_it_has_no_lease_and_nothing_is_sent(app):
    app.conf.task_always_eager = True
    where = app.tasks["where"]
    assert where.delay().get() == WITHOUT_A_LEASE
    options = {"priority": 3, "countdown": 60, "expires": 3600, "pool": "a100", "gpu": "node7:0"}
    assert where.apply_async(**options).get() == WITHOUT_A_LEASE
    assert chain(where.s(), where.s()).apply_async().get()[-1] == WITHOUT_A_LEASE
    assert group(where.s(), where.s()).apply_async().get() == [WITHOUT_A_LEASE] * 2
    assert chord([where.s()], where.s()).apply_async().get()[-1] == [WITHOUT_A_LEASE]


def test_always_eager_its_retries_run_at_once_and_its_error_is_its_own(app):
    app.conf.task_always_eager = True
    result = app.tasks["fail"].delay()
    assert (result.state, str(result.result)) == ("FAILURE", "2")


def test_the_basic_example_runs_here_too(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES / "basic"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for module in ("proj", "tasks"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    render = runpy.run_path(str(EXAMPLES / "basic" / "tasks.py"))["render"]
    assert render.apply(("a.blend", 1)).get() == "a.blend on GPU None, which is CUDA device None of its host"
    sys.modules.pop("proj", None)
