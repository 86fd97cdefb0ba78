"""Workers of grown projects: messages of the old protocol, requests of the user's own, settings that contradict."""

from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery

from celery_gpulease import GPULease, GPURouter
from tests.faults.world import SOON
from tests.processes import Processes
from tests.semantics.site import HOST, PROJECT
from tests.waiting import wait_until


@contextmanager
def processes_of(url, folder, **env):
    env = {"TEST_URL": url, "GPULEASE_HOST": HOST, "PYTHONPATH": str(PROJECT), **env}
    with Processes(folder, cwd=PROJECT, env=env) as processes:
        yield processes


@pytest.fixture
def processes(redis_url, tmp_path):
    with processes_of(redis_url, tmp_path) as processes:
        yield processes


def old_sender(url):
    """An app without the library, which sends in Celery 3's protocol."""
    app = Celery("old", broker=url, backend=url, set_as_current=False)
    app.conf.update(task_protocol=1, accept_content=["json", "yaml"])
    return app


def plain_worker(processes):
    worker = processes.start("celery", "-A", "grudges", "worker", "-c", "1", "-l", "info", name="plain")
    worker.wait_for_log(" ready.")
    return worker


def test_past_the_ledger_a_gpu_task_is_held_whatever_its_request_class_and_protocol(redis_url, client, processes):
    plain_worker(processes)
    sender = old_sender(redis_url)
    eta = datetime.now(timezone.utc) + timedelta(hours=1)
    sent = [sender.send_task(f"grudges.{name}") for name in ("requested", "requested_by_name")]
    sent.append(sender.send_task("grudges.where", (1,), {"k": "é"}, serializer="yaml", compression="gzip"))
    late = sender.send_task("grudges.where", eta=eta)
    wait_until(lambda: client.zcard("gpu:pending:default") == 3, SOON, "three to be held")
    wait_until(lambda: client.zcard("gpu:scheduled"), SOON, "the late one to be held")
    due = client.zscore("gpu:scheduled", client.hkeys(f"gpu:task:{late.id}").pop())
    assert due == int(eta.timestamp() * 1000)
    worker = processes.worker("grudges", 0)
    assert [one.get(timeout=SOON) for one in sent] == [
        f"{HOST}:0", f"{HOST}:0", [f"{HOST}:0", [1], {"k": "é"}, None]
    ]  # fmt: skip
    assert "worker_direct has no effect with --gpu" in worker.log
    put_by_hand = sender.send_task("grudges.where", queue=f"gpu.{HOST}:0", countdown=3600)
    wait_until(lambda: client.zcard("gpu:scheduled") == 2, SOON, "it to be held")
    assert client.exists(f"gpu:task:{put_by_hand.id}")


def test_where_no_gpu_task_can_be_held_everybody_says_so_and_none_runs(redis_url, tmp_path):
    with processes_of(redis_url, tmp_path, TEST_REDIS_OPTIONS='{"db": 1}') as processes:
        refused = processes.start("celery", "-A", "grudges", "worker", "--gpu", "0", name="gpu0")
        assert refused.wait() == 1
        assert "ConfigurationError: gpulease_redis_options: 'db' says where the leases live" in refused.log
        plain = plain_worker(processes)
        assert "GPU tasks cannot be held: gpulease_redis_options: 'db'" in plain.log
        sent = old_sender(redis_url).send_task("grudges.where")
        assert "gpulease_redis_options" in str(sent.get(timeout=SOON, propagate=False))
        assert sent.state == "FAILURE"


def test_tasks_of_an_app_that_sends_in_the_old_protocol_run_as_sent(redis_url, processes):
    app = Celery("old", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.update(task_protocol=1, task_routes=(GPURouter({"grudges.*": "default"}),))
    GPULease(app)
    processes.worker("grudges", 0, TEST_PROTOCOL="1")
    eta = datetime.now(timezone.utc) + timedelta(milliseconds=200)
    link = app.signature("grudges.where", kwargs={"linked": True})
    sent = app.send_task("grudges.where", (1,), {"k": "é"}, eta=eta, link=link)
    assert sent.get(timeout=SOON) == [f"{HOST}:0", [1], {"k": "é"}, eta.isoformat()]
    assert sent.children[0].get(timeout=SOON)[1:3] == [[sent.result], {"linked": True}]
    assert app.send_task("grudges.again").get(timeout=SOON) == [f"{HOST}:0", 1]


def test_a_gpu_is_not_served_under_two_key_prefixes(redis_url, processes):
    processes.worker("grudges", 0)
    wait = processes.start("celery", "-A", "grudges", "worker", "--gpu", "0", name="other", TEST_PREFIX="other:")
    assert wait.wait() == 1
    assert "GPUInUse: GPU node7:0 is served under gpulease_key_prefix = 'gpu:', here it is 'other:'" in wait.log
    processes.worker("grudges", 1, TEST_PREFIX="other:")
