"""examples/systemd: units that please systemd, and whose commands, environment and signals do what they say."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from celery_gpulease.embedded import free_port
from tests.faults.world import HOST, SOON
from tests.pages import commands_of
from tests.waiting import wait_until

FOLDER = Path(__file__).parents[2] / "examples" / "systemd"
UNITS = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".service", ".target"))
SERVICES = [name for name in UNITS if name.endswith(".service")]
BIN = "/srv/proj/.venv/bin/"
#: What hides a GPU from CUDA, forbids its compiler, or hides processes from a worker.
FORBIDDEN = {
    "DeviceAllow", "DevicePolicy", "MemoryDenyWriteExecute", "PrivateDevices", "PrivatePIDs", "PrivateUsers",
    "ProcSubset", "ProtectClock", "ProtectProc", "SystemCallFilter",
}  # fmt: skip


def settings(name):
    """What a unit says: each setting's values, in order."""
    found = {}
    for line in (FOLDER / name).read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def setting(name, of):
    """The one value of a setting."""
    (value,) = settings(of)[name]
    return value


def environment(path):
    """What an environment file says."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if line and line[0] != "#")


def command(unit, instance="", **variables):
    """What systemd would run, in this interpreter's environment, and with which variables."""
    given = {}
    for text in settings(unit).get("Environment", []):
        given.update(pair.split("=", 1) for pair in shlex.split(text.replace("%C", "/var/cache")))
    given.update(environment(FOLDER / "gpulease.env"), **variables)
    words = shlex.split(setting("ExecStart", unit).replace("%i", instance))
    assert words[0].startswith(BIN)
    words = [re.sub(r"\$\{(\w+)\}", lambda name: given[name[1]], word) for word in words]
    return (words[0].removeprefix(BIN), *words[1:]), given


def analyze(*arguments, cwd):
    """What `systemd-analyze` says; without it, a laptop skips the test and CI fails it."""
    if shutil.which("systemd-analyze") is None:
        missing = "no systemd-analyze is installed: apt-get install systemd"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return subprocess.run(["systemd-analyze", *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_its_units_please_systemd(tmp_path):
    for name in UNITS:
        text = (FOLDER / name).read_text().replace(BIN, f"{Path(sys.executable).parent}/")
        (tmp_path / name).write_text(text)
    done = analyze("verify", "--man=no", *(f"./{name}" for name in UNITS), cwd=tmp_path)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_all_of_them_stop_start_and_start_anew_together_and_for_ever():
    for name in SERVICES:
        found = settings(name)
        assert (found["PartOf"], found["WantedBy"]) == (["gpulease.target"], ["gpulease.target"]), name
        assert (found["Restart"], found["StartLimitIntervalSec"]) == (["always"], ["0"]), name


def test_the_sandbox_of_a_worker_leaves_alone_what_cuda_and_the_worker_need():
    assert FORBIDDEN & settings("gpulease@.service").keys() == set()


def test_its_environment_is_what_the_project_and_the_units_read():
    project = (FOLDER.parent / "basic" / "proj.py").read_text()
    names = environment(FOLDER / "gpulease.env").keys() - {"PYTHONUNBUFFERED"}  # Python's own
    assert names == set(re.findall(r'environ\.get\("(\w+)"', project))


def test_its_readme_names_files_units_and_settings_that_are_there():
    once, daily, hurried = commands_of("systemd")
    files = {
        word for line in once if line[0] in ("install", "cp") for word in line[1:] if re.match(r"gpulease\S*\.", word)
    }
    assert files == {path.name for path in FOLDER.iterdir()} - {"README.md"}
    for command in (*once, *daily):
        for word in (
            re.findall(r"gpulease[-@.]\S+", " ".join(command[1:])) if command[0] in ("systemctl", "journalctl") else ()
        ):
            unit = re.sub(r"@.*", "@", word)
            assert unit in UNITS or f"{unit}.service" in UNITS, command
    unit = settings("gpulease@.service")
    assert [words[0].partition("=")[0] in unit for words in hurried] == [False, True, True]


def stop_signal():
    """The one that systemd sends, to main alone."""
    assert setting("KillMode", "gpulease@.service") == "mixed"
    return signal.Signals[setting("KillSignal", "gpulease@.service")]


def start(world):
    """The worker of GPU 0, as its unit starts it, under a running task, with another one that waits."""
    words, given = command("gpulease@.service", "0", POOLS="a100,default")
    worker = world.processes.start(*words, name="gpulease@0", **given)
    worker.wait_for_log(" ready.")
    task = world.send("wait_for", "go")
    world.started(task)
    return worker, task, world.send("add", 1, 2, pool="a100")


def test_stop_lets_the_job_end_and_starts_nothing_new(world):
    worker, task, waiting = start(world)
    worker.send(stop_signal())
    wait_until(lambda: world.client.hexists(f"gpu:closed:{HOST}:0", "closing"), SOON, "the worker to close")
    world.open("go")
    assert worker.wait() == 0, repr(worker)
    world.succeeds(task)
    assert (len(world.runs(task)), world.runs(waiting)) == (1, [])
    assert world.row(0)["state"] == "offline"
    world.worker(0, "--gpu-pools", "a100")
    world.succeeds(waiting)


def test_whoever_is_in_a_hurry_sends_the_job_back_to_its_place_uncounted(world):
    worker, task, waiting = start(world)
    worker.send(stop_signal())
    wait_until(lambda: "Warm shutdown" in worker.output, SOON, "the stop to be heard")
    ((whom, name),) = [
        (words[2], words[4]) for words in commands_of("systemd")[1] if words[:2] == ("systemctl", "kill")
    ]
    assert whom == "--kill-whom=main"
    worker.send(signal.Signals[f"SIG{name}"])
    worker.wait()
    (ticket,) = world.client.hkeys(f"gpu:task:{task}")
    assert world.client.hmget(f"gpu:ticket:{ticket}", "state", "deliveries") == ["pending", "0"]
    world.open("go")
    world.worker(0, "--gpu-pools", "a100,default")
    world.succeeds(waiting, task)


@pytest.mark.long
def test_beat_runs_as_its_unit_says_and_ends_by_the_same_signal(world, tmp_path):
    words, given = command("gpulease-beat.service", STATE_DIRECTORY=str(tmp_path))
    beat = world.processes.start(*words, "--max-interval", "1", name="beat", **given)
    beat.wait_for_log("Sending due task")
    assert list(tmp_path.glob("schedule*"))
    beat.send(signal.SIGTERM)
    beat.wait()  # its exit code is Celery's: the signal may meet it anywhere


@pytest.mark.long
def test_the_exporter_runs_as_its_unit_says_and_ends_by_the_same_signal(world):
    words, given = command("gpulease-exporter.service")
    words = [str(free_port()) if word == "9822" else word for word in words]
    exporter = world.processes.start(*words, name="exporter", **given)
    wait_until(lambda: "/metrics" in exporter.output, SOON, "the exporter")
    exporter.send(signal.SIGTERM)
    assert exporter.wait() == 0, repr(exporter)
