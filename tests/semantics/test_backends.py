"""Any result backend that Celery knows: a task's end is there as Celery would have put it, whoever writes it.

The broker is RabbitMQ throughout. GPU 0's worker lives; that of GPU 1 serves the pool `doomed` besides, and dies.
"""

import gc
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from celery import chord

from celery_gpulease import LeaseLost
from celery_gpulease.dispatch.revoking import cancel
from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.ledger.checks import inconsistencies
from tests.faults.conftest import world_on
from tests.faults.world import HOST, LONG, PROJECT, SOON, overlaps
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.xdist_group("rabbitmq"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex"),  # Celery's Redis backend, with a recent redis-py
]

BACKENDS = ("redis", "rpc", "database", "none")
PATH = os.pathsep.join([str(PROJECT), str(Path(__file__).parent / "project")])


class Lab:
    """A world on RabbitMQ with this backend."""

    def __init__(self, backend, rabbitmq, server_binary, folder):
        self._exit = ExitStack()
        self._exit.enter_context(pytest.MonkeyPatch.context()).setenv("GPULEASE_HOST", HOST)
        self.backend = backend
        redis = self._exit.enter_context(EmbeddedServer(binary=server_binary))
        urls = {
            "redis": redis.url,
            "rpc": "rpc://",
            "database": f"db+sqlite:///{folder}/results.sqlite",
            "none": None,
        }
        conf = {"broker_url": rabbitmq.url, "gpulease_redis_url": redis.url, "result_backend": urls[backend]}
        self.world = self._exit.enter_context(world_on(redis.url, folder, **conf))
        self.survivor = self._start(0, "--gpu-pools", "default,doomed")
        self.until_alive(0)

    def _start(self, gpu, *options):
        command = ("celery", "-A", "brokers", "worker", "--gpu", str(gpu), "-l", "info", *options)
        return self.world.processes.start(*command, name=f"gpu{gpu}", PYTHONPATH=PATH)

    def doomed(self):
        """A worker of GPU 1, known as alive."""
        worker = self._start(1, "--gpu-pools", "doomed")
        self.until_alive(1)
        return worker

    def plain(self):
        """A worker of the plain queue, which is where chords without help of their backend are polled."""
        command = ("celery", "-A", "brokers", "worker", "-c", "1", "-n", "plain@node7", "-l", "info")
        return self.world.processes.start(*command, name="plain", PYTHONPATH=PATH)

    def until_alive(self, gpu):
        here = self.world.ledger.keys.here(f"{HOST}:{gpu}")
        wait_until(lambda: self.world.ledger.client.pubsub_numsub(here)[0][1], LONG, "a listener")

    def send(self, name, *args, pool="default", **options):
        return self.world.app.send_task(f"proj.{name}", args, pool=pool, **options)

    def has_ended(self, result):
        """Its ticket is gone."""
        return not self.world.client.exists(f"gpu:task:{result.id}")

    def check_end(self, result, state, value=None):
        """Waits for this end, in the backend where that can be asked."""
        wait_until(lambda: self.has_ended(result), LONG, "the ticket to end")
        if self.backend == "none":
            with pytest.raises(NotImplementedError):
                result.get(timeout=SOON)
            return
        found = result.get(timeout=SOON, propagate=False)
        assert result.state == state
        assert found == value if state == "SUCCESS" else isinstance(found, value or Exception)

    def rest(self):
        client = self.world.client
        assert overlaps(self.world.runs()) == []
        wait_until(lambda: not client.keys("gpu:ticket:*"), SOON, "all tickets to end")
        wait_until(lambda: not client.keys("gpu:lease:*"), SOON, "all leases to go")
        wait_until(lambda: not inconsistencies(self.world.ledger), SOON, "a consistent ledger")

    def close(self):
        gc.collect()  # an AsyncResult that goes says so to its backend, which must still be there
        self._exit.close()


@pytest.fixture(scope="module", params=BACKENDS)
def _lab(request, rabbitmq, server_binary, tmp_path_factory):
    lab = Lab(request.param, rabbitmq, server_binary, tmp_path_factory.mktemp(request.param))
    yield lab
    lab.close()


@pytest.fixture
def lab(_lab):
    yield _lab
    _lab.rest()


def test_a_result_an_error_and_a_retry_end_as_in_celery(lab):
    lab.check_end(lab.send("add", 1, 2), "SUCCESS", 3)
    lab.check_end(lab.send("fail"), "FAILURE", ValueError)
    retried = lab.send("retry_once", 0)
    lab.check_end(retried, "SUCCESS", 1)
    assert len(lab.world.runs(retried.id)) == 2


def test_what_is_cancelled_or_expires_while_held_is_revoked(lab):
    """The sender writes the one end, a worker the other."""
    first = lab.send("wait_for", "revoked")
    wait_until(lambda: lab.world.runs(first.id), LONG, "the first to start")
    cancelled, expired = lab.send("add", 1, 1), lab.send("add", 1, 1, expires=0.5)
    assert cancel(lab.world.app, lab.world.ledger, [cancelled.id])[1] is None
    lab.check_end(cancelled, "REVOKED")
    lab.check_end(expired, "REVOKED")
    lab.world.open("revoked")
    lab.check_end(first, "SUCCESS", "revoked")
    assert lab.world.runs(cancelled.id) == lab.world.runs(expired.id) == []


def test_who_dies_under_a_task_that_may_run_once_leaves_lease_lost_written_by_another(lab):
    first = lab.send("wait_for", "once")
    wait_until(lambda: lab.world.runs(first.id), LONG, "GPU 0 to be busy")
    doomed = lab.doomed()
    lost = lab.send("wait_for_once", "never", pool="doomed")
    wait_until(lambda: lab.world.runs(lost.id), LONG, "it to start")
    doomed.kill()
    lab.check_end(lost, "FAILURE", LeaseLost)
    assert f"[{lost.id}] has failed" in lab.survivor.log
    lab.world.open("once")
    lab.check_end(first, "SUCCESS", "once")


@pytest.mark.long
def test_an_end_that_was_stored_is_asked_for_before_a_second_run_where_the_backend_can_be_asked(lab):
    first = lab.send("wait_for", "again")
    wait_until(lambda: lab.world.runs(first.id), LONG, "GPU 0 to be busy")
    doomed = lab.doomed()
    result = lab.send("end_as", "SUCCESS", pool="doomed")
    doomed.wait()
    lab.world.open("again")
    lab.check_end(result, "SUCCESS", "SUCCESS")
    assert len(lab.world.runs(result.id)) == (2 if lab.backend in ("rpc", "none") else 1)
    lab.check_end(first, "SUCCESS", "again")


@pytest.mark.long
def test_a_chord_is_what_it_is_in_celery(lab):
    app = lab.world.app
    header = [app.signature("proj.add", (number, 1), options={"pool": "default"}) for number in range(3)]
    body = app.signature("proj.collect", options={"pool": "default"})
    if lab.backend in ("rpc", "none"):  # as with plain tasks
        with pytest.raises(NotImplementedError):
            chord(header)(body)
        wait_until(lambda: not lab.world.client.keys("gpu:ticket:*"), LONG, "what was sent to end")
        return
    worker = lab.plain()
    result = chord(header)(body)
    assert result.get(timeout=LONG) == [1, 2, 3]
    worker.close()
