"""The exporter and the workers' own metrics, as Prometheus asks for them, with real workers under them."""

import json
import re
import signal
import socket
import sys
import urllib.request
from types import SimpleNamespace

import pytest
import redis
from click.testing import CliRunner

from celery_gpulease.embedded import free_port
from celery_gpulease.operate.cli import gpulease
from tests.faults.conftest import world_on
from tests.faults.world import HOST, SOON, kill
from tests.rights import rights_in_readme
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's result backend

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class Scraped:
    """What a port answered."""

    def __init__(self, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SOON) as answer:
            self.text = answer.read().decode()

    def value(self, name, **labels):
        """The sum of a metric's samples that have these labels; None where there are none."""
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        found = [
            float(value) for n, has, value in SAMPLE.findall(self.text) if n == name and wanted <= {*has.split(",")}
        ]
        return sum(found) if found else None


def exporting(world, port):
    """A running exporter."""
    process = world.processes.start(
        "celery", "-A", "proj", "gpulease", "exporter", "--port", str(port), name="exporter"
    )
    wait_until(lambda: "/metrics" in process.output or process.exit_code is not None, SOON, f"{process!r}")
    assert process.exit_code is None, process
    assert f"http://0.0.0.0:{port}/metrics (on all interfaces; --address names one)\n" in process.output
    return process


def until(port, name, wanted, **labels):
    """Waits until the port tells this value, or one for which this is true; what it told."""

    def told():
        found = Scraped(port)
        value = found.value(name, **labels)
        is_it = wanted(value) if callable(wanted) else value == wanted
        return found if is_it and value is not None else None

    return wait_until(told, SOON, f"{name}{labels}")


def ports(number):
    """So many free ports in a row, the first of them."""
    while True:
        first = free_port()
        try:
            with socket.socket() as one:
                one.bind(("", first + number - 1))
        except (OSError, OverflowError):
            continue
        return first


def test_the_exporter_tells_what_real_workers_do_and_never_a_tasks_id(world):
    port = free_port()
    exporter = exporting(world, port)
    world.worker(0)
    world.until_free(0)
    done = [world.send("add", n, n) for n in range(3)]
    world.succeeds(*done)
    busy = world.send("wait_for", "go")
    world.started(busy)
    waiting = [world.send("add", 1, 2), world.send("add", 1, 2, pool="lonely", countdown=3600)]
    until(port, "gpulease_waiting_seconds_count", 4.0, pool="default")
    until(port, "gpulease_scheduled_tasks", 1.0, pool="lonely")
    found = until(port, "gpulease_pending_tasks", 1.0, pool="default")
    assert found.value("gpulease_up") == 1.0
    assert found.value("gpulease_gpu_state", gpu=f"{HOST}:0", state="leased") == 1.0
    assert found.value("gpulease_gpu_state") == 1.0
    assert found.value("gpulease_holding_seconds_count", pool="default") == 3.0
    assert found.value("gpulease_events_total", event="released") == 3.0
    assert found.value("gpulease_claims_total") == 4.0
    for task in (*done, busy, *waiting):
        assert task not in found.text
    assert world.gpulease("cancel", waiting[1]).exit_code == 0
    world.open("go")
    world.succeeds(busy, waiting[0])
    until(port, "gpulease_releases_total", 5.0, reason="ended")
    exporter.send(signal.SIGTERM)
    assert exporter.wait() == 0
    assert exporter.log == ""


@pytest.mark.parametrize("stop", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_the_exporter_outlives_redis_and_stops_when_it_is_told_also_meanwhile(own_server, tmp_path, monkeypatch, stop):
    port = free_port()
    with world_on(own_server.url, tmp_path) as world:
        exporter = exporting(world, port)
        until(port, "gpulease_up", 1.0)
        own_server.stop()
        found = until(port, "gpulease_up", 0.0)
        assert found.value("gpulease_gpu_state") is None
        own_server.restart()
        until(port, "gpulease_up", 1.0)
        own_server.stop()
        until(port, "gpulease_up", 0.0)
        exporter.send(stop)
        assert exporter.wait() == 0
        assert exporter.log.count("does not answer") == 2
        assert "Traceback" not in exporter.log


def test_a_port_that_is_taken_is_said_and_which_option_names_another(world):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = world.gpulease("exporter", "--port", str(port))
    assert process.exit_code == 1
    assert f"port {port} of all interfaces cannot be had" in process.log
    assert "--port names another" in process.log
    assert "Traceback" not in process.log


def test_an_exporter_that_lacks_a_right_in_redis_says_which_and_ends(own_server, tmp_path):
    rights = [one for one in rights_in_readme()[0] if one != "+xread"]
    with redis.Redis.from_url(own_server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "lease", "reset", "on", ">s3cret", *rights)
    with world_on(own_server.url.replace("//", "//lease:s3cret@"), tmp_path) as world:
        process = world.gpulease("exporter", "--port", str(free_port()))
        assert process.exit_code == 1
        assert "'Rights in Redis' in README names all of them" in process.log
        assert "xread" in process.log
        assert "Traceback" not in process.log


def test_without_its_library_the_exporter_names_the_extra(world, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    result = CliRunner().invoke(gpulease, ["exporter"], obj=SimpleNamespace(app=world.app))
    assert result.exit_code == 1
    assert "pip install 'celery-gpulease[prometheus]'" in result.output


def test_without_its_library_a_worker_that_shall_tell_metrics_is_refused(world, tmp_path):
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('not here')")
    conf = json.dumps({**world.conf, "gpulease_metrics_port": free_port()})
    path = f"{world.processes._env['PYTHONPATH']}:{tmp_path}"
    worker = world.processes.start(
        "celery", "-A", "proj", "worker", "--gpu", "0", name="refused", PYTHONPATH=path, TEST_CONF=conf
    )
    assert worker.wait() == 1
    assert "gpulease_metrics_port is set: metrics need prometheus_client" in worker.log
    assert "celery-gpulease[prometheus]" in worker.log
    assert world.client.keys("gpu:worker:*") == []


def test_a_port_that_the_gpus_index_makes_too_great_is_refused(world):
    conf = json.dumps({**world.conf, "gpulease_metrics_port": 65535})
    worker = world.processes.start("celery", "-A", "proj", "worker", "--gpu", "1", name="refused", TEST_CONF=conf)
    assert worker.wait() == 1
    assert "gpulease_metrics_port = 65535: the GPU's index is added" in worker.log
    assert "at most 65534 here" in worker.log


def test_each_worker_of_a_host_tells_what_only_it_knows_at_the_port_of_its_gpu(world):
    first = ports(2)
    conf = json.dumps({**world.conf, "gpulease_metrics_port": first})
    for gpu in (0, 1):
        world.worker(gpu, TEST_CONF=conf)
    tasks = [world.send("wait_for", "go", gpu=f"{HOST}:{gpu}") for gpu in (0, 1)]
    for gpu in (0, 1):
        found = until(first + gpu, "gpulease_worker_renewals_total", lambda value: value, answer="renewed")
        assert found.value("gpulease_worker_renewals_total", gpu=f"{HOST}:{1 - gpu}") is None
        assert found.value("gpulease_worker_renewals_total", answer="unanswered") == 0.0
        found = until(first + gpu, "gpulease_worker_renewal_ttl_left_seconds_count", lambda value: value)
        assert found.value("gpulease_worker_renewal_ttl_left_seconds_bucket", le="0.0") == 0.0
        assert found.value("gpulease_worker_wakeups_total", source="subscription") == 1.0
        until(first + gpu, "gpulease_worker_wakeups_total", lambda value: value, source="heartbeat")
    world.open("go")
    world.succeeds(*tasks)
    world.take(1)
    world.give(1)
    found = until(first + 1, "gpulease_worker_wakeups_total", lambda value: value, source="event")
    for task in tasks:
        assert task not in found.text


def test_a_worker_whose_port_is_taken_works_says_so_once_and_has_it_when_it_is_free(world):
    port = free_port()
    conf = json.dumps({**world.conf, "gpulease_metrics_port": port})
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()
        worker = world.worker(0, TEST_CONF=conf)
        world.succeeds(world.send("add", 1, 2))
        assert f"No metrics: port {port} (gpulease_metrics_port and the GPU's index)" in worker.log
    worker.wait_for_log(f"Metrics: port {port}", SOON)
    assert worker.log.count("No metrics") == 1
    until(port, "gpulease_worker_wakeups_total", lambda value: value)


def test_what_a_killed_worker_left_behind_keeps_nobody_from_its_port(world):
    port = free_port()
    conf = json.dumps({**world.conf, "gpulease_metrics_port": port})
    worker = world.worker(0, "--max-tasks-per-child", "1", TEST_CONF=conf)
    worker.wait_for_log("Metrics: port", SOON)
    world.succeeds(world.send("add", 1, 2))  # the next task's process is forked after the port was had
    task = world.send("fork_and_wait", "go")
    world.started(task)
    kill(worker.pid)
    successor = world.worker(0, TEST_CONF=conf)
    successor.wait_for_log("Metrics: port", SOON)
    assert "No metrics" not in successor.log
    world.open("go")
    world.open("grandchild")
    world.succeeds(task)
