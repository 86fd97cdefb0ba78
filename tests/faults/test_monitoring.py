"""examples/monitoring says what it promises: read by promtool, tried out, and answered by a real Prometheus."""

import json
import os
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from celery_gpulease.embedded import free_port
from celery_gpulease.operate import measures
from celery_gpulease.tally import Measure
from celery_gpulease.worker import measures as worker_measures
from tests.faults.world import SOON
from tests.pages import blocks_of, commands_of
from tests.waiting import wait_until

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
MEASURES = [one for module in (measures, worker_measures) for one in vars(module).values() if isinstance(one, Measure)]

# What dcgm-exporter tells of GPU 0, which is leased, and of GPU 1, which is free; and another GPU that the ledger knows
# nothing of.
DCGM = """\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-4a",device="nvidia0",modelName="NVIDIA A100",Hostname="node7"} 97
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-5b",device="nvidia1",modelName="NVIDIA A100",Hostname="node7"} 0
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-6c",device="nvidia2",modelName="NVIDIA A100",Hostname="node7"} 3
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-4a",device="nvidia0",modelName="NVIDIA A100",Hostname="node7"} 40000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-5b",device="nvidia1",modelName="NVIDIA A100",Hostname="node7"} 2048
"""


def program(name):
    """Of Debian's package; without it, a laptop skips the test and CI fails it."""
    if shutil.which(name) is None:
        missing = f"no {name} is installed: apt-get install prometheus"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return name


def promtool(*arguments, folder=FOLDER, text=None):
    """What it says; it must be content."""
    command = [program("promtool"), *arguments]
    done = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def questions(panels=DASHBOARD["panels"]):
    """What the dashboard asks, without Grafana's variables."""
    for panel in panels:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "1m").replace("$pool", ".*")


def names_in(expression):
    """The metrics in it."""
    return set(re.findall(r"\b(gpulease_\w+|DCGM_\w+)\b", expression))


def test_the_configuration_the_rules_and_their_tests_please_promtool():
    assert "1 rule files found" in promtool("check", "config", "prometheus.yml")
    assert f"{len(RULES)} rules found" in promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


def test_its_readme_names_commands_that_do():
    ((exporter,), (check, tests, prometheus)) = commands_of("monitoring")
    (of_page,) = blocks_of("Metrics", "docs/metrics.md")
    assert exporter in of_page.commands, "which is run there"
    for name, *arguments in (check, tests):
        assert name == "promtool"
        assert "SUCCESS" in promtool(*arguments)
    assert prometheus == ("prometheus", "--config.file=prometheus.yml"), "started below, at another port"


def test_each_alert_is_tried_out():
    tried = (FOLDER / "alerts_test.yml").read_text()
    assert [rule["alert"] for rule in RULES if f'alertname="{rule["alert"]}"' not in tried] == []


def test_whatever_is_asked_for_is_measured():
    known = {measure.name for measure in MEASURES}
    known |= {measure.name + end for measure in MEASURES if measure.buckets for end in ("_bucket", "_count", "_sum")}
    asked = set().union(*map(names_in, [*questions(), *(rule["expr"] for rule in RULES)]))
    assert {name for name in asked if not name.startswith("DCGM_")} <= known
    assert {name for name in asked if name.startswith("DCGM_")} == {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"}


def test_no_panel_of_the_dashboard_covers_another_and_each_has_an_id_of_its_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


class Devices(BaseHTTPRequestHandler):
    """Answers as dcgm-exporter does."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(DCGM.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def dcgm():
    """The port of what answers as dcgm-exporter does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Devices) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def answer(port, question):
    """What Prometheus answers: the values of each series."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": question})
    with urllib.request.urlopen(url, timeout=SOON) as got:
        found = json.load(got)
    assert found["status"] == "success", found
    return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]


def config_for(folder, **targets):
    """The example's configuration with these targets, in a copy of it that asks each second."""
    shutil.copytree(FOLDER, folder)
    config = yaml.safe_load((folder / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"127.0.0.1:{targets[job['job_name'].replace('-', '_')]}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))


def test_a_real_prometheus_answers_all_that_the_dashboard_asks(world, dcgm, tmp_path):
    program("prometheus")
    port, workers, exporter = free_port(), free_port(), free_port()
    world.conf["gpulease_metrics_port"] = workers
    world.worker(0, TEST_CONF=json.dumps(world.conf))
    world.worker(1)
    world.client.hset("gpu:device:node7:0", "uuid", "GPU-4a")  # as a worker says it where NVML is present
    world.client.hset("gpu:device:node7:1", "uuid", "GPU-5b")
    world.processes.start("celery", "-A", "proj", "gpulease", "exporter", "--port", str(exporter), name="exporter")
    config_for(tmp_path / "monitoring", gpulease=exporter, gpulease_workers=workers, dcgm=dcgm)
    world.processes.start(
        "prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={tmp_path}/data", name="prometheus", cwd=tmp_path / "monitoring",
    )  # fmt: skip
    task = world.send("wait_for", "go", gpu="node7:0")
    world.started(task)
    world.send("add", 1, 2, gpu="node7:0")

    def is_up():
        try:
            return len([one for one in answer(port, "up == 1") if one]) == 3 and answer(
                port, "gpulease_pending_tasks > 0"
            )
        except OSError:
            return None

    wait_until(is_up, SOON, "Prometheus to have asked all three")
    for question in questions():
        answer(port, question)
    used, free = [one for one in questions() if "DCGM" in one]
    wait_until(lambda: answer(port, used) and answer(port, free), SOON, "what is joined with dcgm-exporter's")
    assert [(labels["gpu"], value) for labels, value in answer(port, used)] == [("node7:0", 97.0)]
    assert [(labels["gpu"], value) for labels, value in answer(port, free)] == [("node7:1", 2048.0)]
    for url in (exporter, workers):
        with urllib.request.urlopen(f"http://127.0.0.1:{url}/metrics", timeout=SOON) as got:
            assert promtool("check", "metrics", text=got.read().decode()) == ""
    world.open("go")
