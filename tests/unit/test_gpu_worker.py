"""What a GPU's worker says of its processes: none is forgotten before it is gone."""

import subprocess

import pytest
from kombu.message import Message

from celery_gpulease.model import Claim, Device
from celery_gpulease.settings import Settings
from celery_gpulease.worker import gpu_worker as gpu_workers
from celery_gpulease.worker import remote
from celery_gpulease.worker.gpu_worker import GPUWorker
from celery_gpulease.worker.processes import started_at


@pytest.fixture
def worker():
    return GPUWorker(None, Device("n:0", 0, "n"), ("default",), "gpu0@n")


@pytest.fixture
def child():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_child_is_named_once_and_until_it_is_gone(worker, child):
    worker.child_pids = lambda: [child.pid]
    assert [worker.count_children(), worker.count_children()] == [True, False]
    assert worker.presence.children == ((child.pid, started_at(child.pid)),)
    worker.child_pids = list  # the pool closes
    assert not worker.count_children()
    child.kill()
    child.wait()
    assert worker.count_children()
    assert worker.presence.children == ()


@pytest.mark.parametrize("is_named", [True, False])
def test_whoever_runs_a_task_is_told_of_at_once_unless_it_was_before(worker, child, is_named):
    woken = []
    worker.wake_heartbeat = lambda: woken.append(1)
    worker.child_pids = lambda: [child.pid] if is_named else []
    worker.count_children()
    worker.runs_in(child.pid)
    worker.runs_in(worker.presence.pid)
    assert woken == ([] if is_named else [1])


class Ledger:
    """As much of one as `inspect` asks."""

    settings = Settings(redis_url="redis://localhost")


def test_what_is_no_request_is_inspected_too(monkeypatch):
    """A message of which Celery could make none, while Redis does not hear that its ticket ends."""
    worker = GPUWorker(Ledger(), Device("n:0", 0, "n"), ("default",), "gpu0@n")
    worker.begin(Claim("t", "n:0", "token", 7, 1), Message(body="{"))
    monkeypatch.setattr(gpu_workers, "current", worker)
    (told,) = remote.inspect(None)["running"]
    assert (told["task_id"], told["task"], told["fence"]) == (None, None, 7)
