"""With NVML: a GPU goes by its UUID and its index alike, and gets no work while something else uses it, or it is ill.

The workers are real, and so is the process that asks NVML; the module `pynvml` that it finds is ours, and reads the
state of the devices from a file (tests/faults/nvml).
"""

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from celery_gpulease.ledger.views import gpu_rows
from celery_gpulease.worker.processes import realm
from tests.faults.faults import Fault
from tests.faults.world import HOST, LONG, PROJECT, SOON
from tests.waiting import wait_until

MODULE = Path(__file__).parent / "nvml"
GIB = 1 << 30
ONE, TWO = "GPU-1111-aa", "GPU-2222-bb"

needs_proc = pytest.mark.skipif(not realm(), reason="the kernel does not tell who lives: no Linux, or a foreign /proc")


class Host:
    """The devices that NVML tells of, and the workers that hear of them."""

    def __init__(self, world):
        self.world, self.path = world, world.folder / "nvml.json"
        self.state = {"devices": [device(ONE), device(TWO)]}
        self.change()

    def change(self, uuid=None, **what):
        """Of one device, or of all of NVML; as a whole for who reads it."""
        target = next((one for one in self.state["devices"] if one["uuid"] == uuid), self.state)
        target.update(what)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.state))
        fresh.rename(self.path)

    def env(self, **more):
        return {"PYTHONPATH": os.pathsep.join((str(PROJECT), str(MODULE))), "TEST_NVML": str(self.path), **more}

    def worker(self, gpu=0, *options, **env):
        """One that is ready, and known by the ledger as alive."""
        process = self.world.processes.worker("proj", gpu, *options, **self.env(**env))
        uuid = next(one["uuid"] for at, one in enumerate(self.state["devices"]) if gpu in (at, one["uuid"]))
        here = self.world.ledger.keys.here(uuid)
        wait_until(lambda: self.world.client.pubsub_numsub(here)[0][1], SOON, "a listener")
        return process

    def refused(self, *options, **env):
        """What a worker says that does not start."""
        command = ("celery", "-A", "proj", "worker", "-l", "info", *options)
        process = self.world.processes.start(*command, name="refused", **self.env(**env))
        assert process.wait() == 1, repr(process)
        assert "Traceback" not in process.log, repr(process)
        return process.log

    def looks(self):
        """How often a device was looked at."""
        looks = self.path.with_suffix(".looks")
        return len(looks.read_text()) if looks.exists() else 0

    def until_looked(self, times=3):
        """At what is true now: one look, and another, have begun since."""
        before = self.looks()
        wait_until(lambda: self.looks() >= before + 2 * times, SOON, "looks at the device")  # two kinds of processes

    def row(self, uuid=ONE):
        return next(asdict(row) for row in gpu_rows(self.world.ledger) if row.id == uuid)

    def until(self, state, uuid=ONE, seconds=SOON):
        """Its row, once it has this state."""
        return wait_until(lambda: (row := self.row(uuid))["state"] == state and row, seconds, state)


def device(uuid):
    return {
        "uuid": uuid, "name": "NVIDIA Test", "total": 16 * GIB, "reserved": GIB // 2, "used": 0, "mig": False,
        "compute": [], "graphics": [],
    }  # fmt: skip


@pytest.fixture
def host(world):
    return Host(world)


@pytest.fixture
def stranger():
    """A program of nobody's."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


# its names


def test_a_gpu_goes_by_its_uuid_and_by_its_index(world, host):
    worker = host.worker(TWO)
    assert f"Serving GPU {TWO} (index 1, NVIDIA Test)" in worker.log
    assert host.row(TWO)["worker"] == f"gpu1@{HOST}"
    assert world.client.hget(f"gpu:device:{TWO}", "memory_bytes") == str(16 * GIB)
    tasks = [world.send("add", 1, 2, gpu=name) for name in (TWO, f"{HOST}:1")] + [world.send("retry_once", 0)]
    world.succeeds(*tasks)
    for run in world.runs():
        assert (run.gpu, run.facts["index"], run.facts["visible"]) == (TWO, 1, "1")
        assert run.facts["order"] == "PCI_BUS_ID"
    for name, answer in ((f"{HOST}:1", "is draining"), (TWO, "is draining")):
        assert f"{TWO} {answer}" in world.gpulease("drain", name).output
        assert f"{TWO} takes work" in world.gpulease("undrain", name).output


@pytest.mark.parametrize("name", [f"{HOST}:0", pytest.param(ONE, marks=pytest.mark.long)])
def test_other_programs_may_go_by_either_name(patient, name):
    host = Host(patient)
    host.worker()
    lease, wish = f"gpu:lease:{name}", f"gpu:want:{name}"
    patient.client.set(lease, "stranger", px=600_000)
    task = patient.send("add", 1, 2)
    assert host.row()["reason"] == "leased by a foreign holder: stranger"
    patient.client.set(wish, "another", px=600_000)
    patient.client.delete(lease)
    assert host.row()["reason"] == "wanted by another"
    assert patient.runs(task) == []
    patient.client.delete(wish)
    patient.succeeds(task, seconds=SOON)  # no heartbeat comes: it has heard of it
    patient.client.set(lease, "stranger", px=600_000)
    assert "stranger loses it" in patient.gpulease("release", f"{HOST}:0", "--force").output
    patient.succeeds(patient.send("add", 3, 4), seconds=SOON)


@pytest.mark.parametrize(
    ("gpu", "what", "named"),
    [
        ("2", {}, f"knows no such GPU here; there are 0 ({ONE}, NVIDIA Test), 1 ({TWO}, NVIDIA Test)"),
        (ONE, {"mig": True}, "nvidia-smi -i 0 -mig 0"),
        ("0", {"error": 15}, "NVML says: GPU is lost"),
    ],
)
def test_what_cannot_be_served_is_refused_and_the_cure_is_named(world, host, gpu, what, named):
    host.change(ONE, **what)
    said = host.refused("--gpu", gpu)
    assert named in said
    assert list(world.client.scan_iter("gpu:*")) == []


@pytest.mark.parametrize(("what", "named"), [({"crashes": True}, "has ended"), ({"error": 999}, "Unknown Error")])
def test_nvml_that_is_there_and_fails_is_no_reason_to_go_by_another_name(host, what, named):
    host.change(**what)
    said = host.refused("--gpu", "0")
    assert "nvidia-smi" in said
    assert named in said


@pytest.mark.parametrize("error", [9, pytest.param(12, marks=pytest.mark.long)], ids=["no driver", "no library"])
def test_without_a_driver_it_is_as_without_nvml(world, host, error):
    host.change(error=error)
    world.worker(0, **host.env())
    task = world.send("add", 1, 2)
    world.succeeds(task)
    assert world.runs(task)[0].gpu == f"{HOST}:0"
    assert "NVML" in host.refused("--gpu", ONE)


@pytest.mark.parametrize("has_first", [True, False])
def test_two_workers_that_name_one_device_differently_are_refused(world, host, has_first):
    first, second = (host.worker, world.processes.start) if has_first else (world.worker, host.refused)
    first(0)
    if has_first:
        process = second("celery", "-A", "proj", "worker", "--gpu", "0", name="second")
        assert process.wait() == 1
        said = process.log
    else:
        said = second("--gpu", "0")
    assert f"gpu0@{HOST}" in said
    assert "Give all workers of a host NVML" in said


@pytest.mark.long
def test_two_devices_that_go_by_one_name_are_refused(world, host):
    host.worker(0)
    host.change(devices=[device(TWO)])
    assert "GPULEASE_HOST" in host.refused("--gpu", "0")
    host.worker(0, GPULEASE_HOST="node8")


@needs_proc
@pytest.mark.parametrize("has_nvml", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_device_whose_dead_worker_gave_it_the_other_name_is_taken_over_at_once(patient, has_nvml):
    host = Host(patient)
    starts = [patient.worker, host.worker]
    worker = starts[has_nvml](0)
    task = patient.send("wait_for", "go", pool="default")
    patient.started(task)
    worker.kill()
    starts[not has_nvml](0)
    again = patient.started(task, 2)
    assert again.gpu == (f"{HOST}:0" if has_nvml else ONE)
    patient.open("go")
    patient.succeeds(task)


# who else uses it


@needs_proc
def test_what_a_stranger_computes_there_closes_the_gpu_until_he_is_gone(world, host, stranger):
    host.worker()
    host.change(ONE, compute=[[stranger.pid, 812 << 20]], used=812 << 20)
    row = host.until("quarantined")
    assert row["reason"] == f"something else uses it: process {stranger.pid} (sleep, 812 MiB)"
    task = world.send("add", 1, 2)
    host.until_looked()
    assert world.runs(task) == []
    host.change(ONE, compute=[], used=0)
    world.succeeds(task)
    told = [entry["what"] for _, entry in world.client.xrange("gpu:journal") if "quarantine" in entry["what"]]
    assert told == ["quarantined", "quarantine_ended"]


def test_memory_that_nobody_explains_closes_it_too(world, host):
    host.worker()
    host.change(ONE, used=3 * GIB)
    assert "3072 MiB are taken, by no process that is seen" in host.until("quarantined")["reason"]
    host.change(ONE, used=GIB // 4)
    host.until("free")


@needs_proc
@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(other, marks=pytest.mark.long) for other in ("solo", "threads"))]
)
def test_what_a_worker_keeps_between_its_tasks_is_its_own(world, host, pool):
    host.worker(0, "-P", pool)
    task = world.send("add", 1, 2)
    world.succeeds(task)
    pid = world.runs(task)[0].pid
    host.change(ONE, compute=[[pid, 9 * GIB]], used=9 * GIB + (300 << 20))
    host.until_looked()
    assert host.row()["state"] == "free"
    world.succeeds(world.send("add", 3, 4))


@needs_proc
def test_nobody_looks_while_a_task_runs_or_a_stranger_has_the_lease(world, host, stranger):
    host.worker()
    task = world.send("wait_for", "go")
    world.started(task)
    host.change(ONE, compute=[[stranger.pid, GIB]], used=GIB)
    reported = f"gpu:device:{ONE}", "reported_ms"
    seen, looks = set(), set()

    def has_beaten():
        seen.add(world.client.hget(*reported))
        looks.add(host.looks())
        return len(seen) > 4

    wait_until(has_beaten, SOON, "heartbeats")
    assert len(looks) <= 2  # one may have begun before
    world.client.set(f"gpu:want:{ONE}", "stranger")
    world.open("go")
    world.succeeds(task)
    world.client.set(f"gpu:lease:{ONE}", "stranger", px=600_000)
    world.client.delete(f"gpu:want:{ONE}")
    host.until_looked()
    assert host.row()["state"] == "leased"
    assert world.client.hget(f"gpu:closed:{ONE}", "device") is None
    host.change(ONE, compute=[], used=0)
    world.client.delete(f"gpu:lease:{ONE}")


@needs_proc
@pytest.mark.parametrize("is_worker_killed", [False, True])
def test_what_a_dead_holder_left_keeps_the_next_task_away(world, host, stranger, is_worker_killed):
    worker = host.worker()
    task, following = world.send("wait_for", "go"), world.send("add", 1, 2)
    world.started(task)
    host.change(ONE, compute=[[stranger.pid, GIB]], used=GIB)  # an orphan that bears no mark of its run
    if is_worker_killed:
        worker.kill()
        host.worker()
    else:
        Fault.CHILDREN_KILLED.hit(world, worker)
    assert f"process {stranger.pid} (sleep, 1024 MiB)" in host.until("quarantined")["reason"]
    host.until_looked()
    assert (len(world.runs(task)), world.runs(following)) == (1, [])
    stranger.kill()
    stranger.wait()
    host.change(ONE, compute=[], used=0)
    world.open("go")
    world.succeeds(task, following)
    story = [entry["what"] for _, entry in world.client.xrange("gpu:journal") if entry["gpu"] == ONE]
    assert "claimed" not in story[story.index("quarantined") : story.index("quarantine_ended")]
    assert story[: story.index("quarantined")].count("claimed") == 1


def test_after_a_death_that_left_nothing_its_gpu_is_offered_at_once(patient):
    host = Host(patient)
    worker = host.worker()
    task = patient.send("wait_for", "go")
    patient.started(task)
    Fault.CHILDREN_KILLED.hit(patient, worker)
    patient.started(task, 2)  # no heartbeat comes
    patient.open("go")
    patient.succeeds(task)


@needs_proc
def test_a_worker_that_starts_beside_a_strangers_program_waits_for_its_end(world, host, stranger):
    host.change(ONE, compute=[[stranger.pid, None]], used=GIB)
    task = world.send("add", 1, 2)
    worker = host.worker()
    assert f"process {stranger.pid} (sleep)" in host.row()["reason"]
    assert f"quarantined: something else uses it: process {stranger.pid}" in worker.log
    host.change(ONE, compute=[])
    world.succeeds(task)
    worker.wait_for_log("is open again", SOON)


# it is ill


def test_a_device_that_is_lost_closes_its_gpu_and_one_that_is_back_opens_it(world, host):
    worker = host.worker()
    host.change(ONE, error=15)
    assert host.until("quarantined")["reason"] == "the device is not well, NVML says: GPU is lost"
    task = world.send("add", 1, 2)
    host.change(ONE, error=0)
    world.succeeds(task)
    assert worker.exit_code is None


def test_a_library_that_takes_its_process_with_it_ends_no_worker(world, host):
    worker = host.worker()
    host.change(crashes=True)
    assert "has ended" in host.until("quarantined")["reason"]
    task = world.send("add", 1, 2)
    host.change(crashes=False)
    world.succeeds(task)
    assert worker.exit_code is None


@pytest.mark.long
def test_a_driver_that_hangs_stops_no_heartbeat_and_no_end(world, host):
    worker = host.worker()
    task = world.send("wait_for", "go")
    world.started(task)
    host.change(hangs=True)
    Fault.CHILDREN_KILLED.hit(world, worker)
    seen = set()
    wait_until(lambda: seen.add(world.client.hget(f"gpu:device:{ONE}", "reported_ms")) or len(seen) > 4, SOON, "beats")
    assert "no answer" in host.until("quarantined", seconds=LONG)["reason"]
    world.open("go")
    host.change(hangs=False)
    world.succeeds(task)
    host.change(hangs=True)
    worker.send(signal.SIGTERM)
    assert worker.wait(SOON) == 0


@pytest.mark.long
def test_the_process_that_asks_goes_with_its_worker_however_that_goes(host, world):
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL):
        worker = host.worker(0, GPULEASE_HOST=f"node{number}")
        (asking,) = [pid for pid in worker.children() if b"nvml_process" in command(pid)]
        worker.send(number)
        worker.wait()
        wait_until(lambda asking=asking: b"nvml_process" not in command(asking), SOON, f"process {asking} to end")
        world.client.delete(f"gpu:worker:{ONE}")


def command(pid):
    """Empty when it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
