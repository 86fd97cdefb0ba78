"""examples/kubernetes: manifests that fit their schemas, each other and this package; and what they start, started."""

import json
import re
import signal
import urllib.request
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from celery_gpulease.embedded import EmbeddedServer, free_port
from tests.faults.test_monitoring import names_in, promtool
from tests.faults.world import SOON
from tests.pages import commands_of
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDER = EXAMPLES / "kubernetes"
MANIFESTS = {
    (one["kind"], one["metadata"]["name"]): one
    for path in sorted(FOLDER.glob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text())
}
#: Kinds that Kubernetes itself does not know, with what theirs must have.
CUSTOM = {
    "ScaledObject": ("keda.sh/v1alpha1", {"scaleTargetRef", "triggers"}),
    "ServiceMonitor": ("monitoring.coreos.com/v1", {"selector", "endpoints"}),
}
WORKLOADS = {name: one for name, one in MANIFESTS.items() if "template" in one["spec"]}
POD = "gpu-worker-0"  # the first pod of the StatefulSet
GPU = f"{POD}:0"


def container(name):
    """The one container of a workload."""
    (found,) = next(one for (_, its), one in WORKLOADS.items() if its == name)["spec"]["template"]["spec"]["containers"]
    return found


def environment(name, url):
    """What Kubernetes puts into it, as in the first pod."""

    def value(one):
        source = one.get("valueFrom", {})
        if "secretKeyRef" in source:
            return {"REDIS_URL": url}[source["secretKeyRef"]["key"]]
        return {"metadata.name": POD}[source["fieldRef"]["fieldPath"]] if source else one["value"]

    return {one["name"]: value(one) for one in container(name).get("env", [])}


# -- what they say -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in MANIFESTS if name[0] not in CUSTOM], ids="/".join)
@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_each_fits_the_schema_of_its_kind(name, version):
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


@pytest.mark.parametrize("name", [name for name in MANIFESTS if name[0] in CUSTOM], ids="/".join)
def test_what_others_define_has_what_they_demand(name):
    version, needed = CUSTOM[name[0]]
    assert MANIFESTS[name]["apiVersion"] == version
    assert needed <= MANIFESTS[name]["spec"].keys()


def test_its_readme_names_what_is_there():
    ((secret, *applied, look),) = commands_of("kubernetes")
    assert secret[:5] == ("kubectl", "create", "secret", "generic", "gpulease")
    assert secret[5].startswith("--from-literal=REDIS_URL=redis://redis:")
    assert {word for line in applied for word in line[2:] if word != "-f"} == {
        path.name for path in FOLDER.glob("*.yaml")
    }
    assert ("Deployment", look[2].removeprefix("deploy/")) in MANIFESTS
    assert ("Service", "redis") in MANIFESTS


def test_whatever_one_names_of_another_exists():
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in WORKLOADS.values()]
    services = [MANIFESTS["Service", "gpulease-exporter"]["metadata"]["labels"]]
    for (kind, name), one in MANIFESTS.items():
        selector = one["spec"].get("selector", {})
        wanted = selector.get("matchLabels", selector)
        among = services if kind == "ServiceMonitor" else pods
        assert not wanted or any(wanted.items() <= have.items() for have in among), name
        if service := one["spec"].get("serviceName"):
            assert ("Service", service) in MANIFESTS
    target = MANIFESTS["ScaledObject", "gpu-worker"]["spec"]["scaleTargetRef"]
    assert MANIFESTS[target["kind"], target["name"]]["apiVersion"] == target["apiVersion"]
    (endpoint,) = MANIFESTS["ServiceMonitor", "gpulease-exporter"]["spec"]["endpoints"]
    (port,) = MANIFESTS["Service", "gpulease-exporter"]["spec"]["ports"]
    assert endpoint["port"] == port["name"]


def test_its_readme_applies_every_file_and_makes_the_secret():
    readme = (FOLDER / "README.md").read_text()
    assert set(re.findall(r"-f (\S+\.yaml)", readme)) == {path.name for path in FOLDER.glob("*.yaml")}
    assert "secret generic gpulease --from-literal=REDIS_URL=" in readme
    wanted = {
        (one["valueFrom"]["secretKeyRef"]["name"], one["valueFrom"]["secretKeyRef"]["key"])
        for _, name in WORKLOADS
        for one in container(name).get("env", [])
        if "secretKeyRef" in one.get("valueFrom", {})
    }
    assert wanted == {("gpulease", "REDIS_URL")}


@pytest.mark.parametrize("name", WORKLOADS, ids="/".join)
def test_nothing_runs_as_root_or_writes_into_its_image(name):
    pod = WORKLOADS[name]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    (one,) = pod["containers"]
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_pod_stops_by_term_alone_and_has_hours_for_it():
    pod = MANIFESTS["StatefulSet", "gpu-worker"]["spec"]["template"]["spec"]
    assert "lifecycle" not in pod["containers"][0]
    assert pod["containers"][0]["command"][0] == "celery", "a shell would keep TERM to itself"
    assert pod["shareProcessNamespace"], "PID 1 hears no TERM before it asks for it"
    assert pod["terminationGracePeriodSeconds"] >= 3600


# -- what scales them --------------------------------------------------------------------------------------------------

(TRIGGER,) = MANIFESTS["ScaledObject", "gpu-worker"]["spec"]["triggers"]
QUERY = TRIGGER["metadata"]["query"]


COUNTED = ('gpulease_pending_tasks{pool="default"}', 'gpulease_pool_gpus{pool="default",state="leased"}')


def answers(folder, series, expected):
    """Is that what Prometheus answers to KEDA's question, by promtool?"""
    test = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "input_series": [{"series": one, "values": str(value)} for one, value in series.items()],
                "promql_expr_test": [
                    {
                        "expr": QUERY,
                        "eval_time": "0m",
                        "exp_samples": [] if expected is None else [{"labels": "{}", "value": expected}],
                    }
                ],
            }
        ],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(test))
    return "SUCCESS" in promtool("test", "rules", "test.yml", folder=folder)


def test_no_answer_is_no_zero(tmp_path):
    assert answers(tmp_path, {"gpulease_up": 0}, None)
    assert TRIGGER["metadata"]["ignoreNullValues"] == "false"


def test_its_metadata_is_text_as_keda_wants_it():
    assert [one for one in TRIGGER["metadata"].values() if not isinstance(one, str)] == []


def series_of(port):
    """What the exporter tells of pools."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SOON) as got:
        lines = re.findall(r"^(gpulease_\w+\{.*?pool=.*\}) ([0-9.]+)$", got.read().decode(), re.MULTILINE)
    return {series: float(value) for series, value in lines if names_in(series) <= names_in(QUERY)}


# -- what they start ---------------------------------------------------------------------------------------------------


class Pod:
    """The container of a workload in the first pod: its main process, and its probes."""

    def __init__(self, world, name, url=None, **more):
        self._world, self._container = world, container(name)
        self._env = {**environment(name, url or world.url), **more}
        self.process = None

    def start(self):
        """Starts it."""
        self.process = self._world.processes.start(*self._container["command"], name="pod", **self._env)
        return self

    def passes(self, probe):
        """Does this probe of it?"""
        command = self._container[probe]["exec"]["command"]
        return self._world.processes.start(*command, name=probe, cwd=EXAMPLES / "basic", **self._env).wait() == 0

    def serve(self):
        """Starts it, and waits until it takes work."""
        self.start().process.wait_for_log(" ready.")
        wait_until(lambda: self.passes("readinessProbe"), SOON, "the pod to be ready")
        return self


def test_a_pod_that_is_told_to_stop_ends_its_job_and_starts_no_other(world):
    pod = Pod(world, "gpu-worker").serve()
    task = world.send("wait_for", "go")
    assert world.started(task).gpu == GPU
    waiting = world.send("add", 1, 2)
    pod.process.send(signal.SIGTERM)
    wait_until(lambda: world.client.hexists(f"gpu:closed:{GPU}", "closing"), SOON, "the pod to close")
    wait_until(lambda: not pod.passes("readinessProbe"), SOON, "the pod to take no work")
    assert pod.passes("livenessProbe"), "it would be killed under its job"
    world.open("go")
    assert pod.process.wait() == 0, repr(pod.process)
    assert not pod.passes("livenessProbe")
    world.succeeds(task)
    assert (len(world.runs(task)), world.runs(waiting)) == (1, [])
    Pod(world, "gpu-worker").serve()  # under its old name: there is no dead GPU behind it
    world.succeeds(waiting)
    assert world.client.zrange("gpu:gpus", 0, -1) == [GPU]


def test_while_redis_is_away_no_pod_is_killed(world):
    pod = Pod(world, "gpu-worker", url=f"redis://127.0.0.1:{free_port()}/0")
    assert pod.passes("livenessProbe")
    assert not pod.passes("readinessProbe")


def test_a_probe_finds_a_gpu_whose_id_is_its_uuid(world):
    world.client.hset("gpu:names", GPU, "GPU-4a")  # as a worker says it where NVML is present
    world.client.set("gpu:worker:GPU-4a", "{}", ex=60)
    pod = Pod(world, "gpu-worker")
    assert pod.passes("livenessProbe")
    world.client.delete("gpu:worker:GPU-4a")
    assert not pod.passes("livenessProbe")
    world.client.delete("gpu:names")


@pytest.mark.long
def test_a_job_that_may_be_cut_short_goes_back_to_its_place_uncounted(world):
    conf = json.dumps({**world.conf, "worker_soft_shutdown_timeout": 1.0})
    pod = Pod(world, "gpu-worker", REMAP_SIGTERM="SIGQUIT", TEST_CONF=conf).serve()
    task = world.send("wait_for", "go")
    world.started(task)
    pod.process.send(signal.SIGTERM)
    pod.process.wait()
    (ticket,) = world.client.hkeys(f"gpu:task:{task}")
    assert world.client.hmget(f"gpu:ticket:{ticket}", "state", "deliveries") == ["pending", "0"]
    world.open("go")
    Pod(world, "gpu-worker").serve()
    world.succeeds(task)


def test_keda_counts_who_waits_and_who_runs_also_when_nobody_serves(world, tmp_path, monkeypatch):
    port = free_port()
    exporter = container("gpulease-exporter")
    monkeypatch.setitem(exporter, "command", [str(port) if word == "9822" else word for word in exporter["command"]])
    Pod(world, "gpulease-exporter").start()
    worker = Pod(world, "gpu-worker").serve()
    running = world.send("wait_for", "go")
    world.started(running)
    waiting = [world.send("add", 1, 2) for _ in range(2)]

    def told(number):
        try:
            found = series_of(port)
        except OSError:
            return None
        return found if sum(found.get(one, 0) for one in COUNTED) == number else None

    assert answers(tmp_path, wait_until(lambda: told(3), SOON, "a job that runs, and two that wait"), 3)
    worker.process.send(signal.SIGTERM)
    world.open("go")
    worker.process.wait()
    assert answers(tmp_path, wait_until(lambda: told(2), SOON, "the two that wait"), 2)
    Pod(world, "gpu-worker").serve()
    world.succeeds(running, *waiting)
    assert answers(tmp_path, wait_until(lambda: told(0), SOON, "nobody to wait"), 0)


@pytest.mark.long
def test_beat_sends_the_reconciler(world, tmp_path):
    words = [word.replace("/tmp/schedule", f"{tmp_path}/schedule") for word in container("gpulease-beat")["command"]]
    env = environment("gpulease-beat", world.url)
    beat = world.processes.start(*words, "--max-interval", "1", name="beat", **env)
    beat.wait_for_log("Sending due task")
    beat.send(signal.SIGTERM)
    beat.wait()


@pytest.mark.long
def test_the_doctor_finds_nothing_wrong_with_the_redis(world, tmp_path, server_binary):
    options = [str(tmp_path) if word == "/data" else word for word in container("redis")["args"]]
    with EmbeddedServer(*options, binary=server_binary) as server:
        command = ("celery", "-A", "proj", "gpulease", "doctor")
        assert "nothing found" in world.processes.run(*command, TEST_URL=server.url).output
    assert list(tmp_path.glob("appendonlydir/*"))
