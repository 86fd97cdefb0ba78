"""What NVML tells, and what of it is wrong with a device that should be free."""

import importlib.util
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from celery_gpulease.devices import Hardware
from celery_gpulease.model import Device
from celery_gpulease.worker import occupants
from celery_gpulease.worker.device_watch import LONGEST_WAIT, DeviceWatch
from celery_gpulease.worker.gpu_worker import Execution
from celery_gpulease.worker.nvml import hardware
from celery_gpulease.worker.nvml_process import NVML
from celery_gpulease.worker.processes import realm

GIB = 1 << 30
HERE, GONE = os.getpid(), 1 << 22  # no pid is so large
DEVICE = {
    "uuid": "GPU-1", "name": "NVIDIA Test", "total": 16 * GIB, "reserved": GIB, "used": 0, "mig": False, "compute": [],
    "graphics": [],
}  # fmt: skip

needs_proc = pytest.mark.skipif(not realm(), reason="the kernel does not tell who lives: no Linux, or a foreign /proc")


# what its process says


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    """Asks a stand-in: `nvml(question, …, field=value)`, with what is changed of all, or of its device."""
    path = Path(__file__).parents[1] / "faults" / "nvml" / "pynvml.py"
    spec = importlib.util.spec_from_file_location("pynvml_stand_in", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("TEST_NVML", str(tmp_path / "nvml.json"))
    asked = NVML(module)

    def ask(*question, device=None, **state):
        state = {"devices": [DEVICE | (device or {})], **state}
        (tmp_path / "nvml.json").write_text(json.dumps(state))
        return asked.answer(*question)

    return ask


def test_it_tells_what_is_there(nvml):
    (told,) = nvml("list")["devices"]
    assert hardware(told) == Hardware(0, "GPU-1", "NVIDIA Test", 16 * GIB)


@pytest.mark.parametrize("device", [{"error": 15}, {"mig": True}])
def test_a_device_that_cannot_be_served_says_why_and_hides_no_other(nvml, device):
    good, bad = nvml("list", devices=[DEVICE, DEVICE | {"uuid": "GPU-2"} | device])["devices"]
    assert hardware(good).trouble == ""
    assert ("GPU is lost" if "error" in device else "nvidia-smi -i 1 -mig 0") in hardware(bad).trouble


def test_what_a_device_does_not_tell_is_not_known(nvml):
    everything = ["processes", "memory", "memory_v2", "mig"]
    (told,) = nvml("list", device={"hides": everything})["devices"]
    assert hardware(told) == Hardware(0, "GPU-1", "NVIDIA Test", 0)
    look = nvml("look", "GPU-1", device={"hides": everything})
    assert look == {"used_bytes": None, "listed": None, "computing": []}
    assert occupants.trouble_of(look, ()) == ("", False)


def test_an_older_driver_is_asked_as_it_can_be(nvml):
    look = nvml("look", "GPU-1", device={"hides": ["v3", "memory_v2"], "compute": [[1, 2]], "used": 2})
    assert look == {"used_bytes": 2 + GIB, "listed": [(1, 2)], "computing": [1]}


def test_who_computes_is_told_from_who_draws(nvml):
    look = nvml("look", "GPU-1", device={"compute": [[1, 5], [2, None]], "graphics": [[1, 4], [3, 6]]})
    assert look == {"used_bytes": 0, "listed": [(1, 5), (3, 6), (2, None)], "computing": [1, 2]}


@pytest.mark.parametrize("error", [9, 12])
def test_where_there_is_no_driver_nvml_is_missing(nvml, error):
    assert "missing" in nvml("list", error=error)


def test_after_an_error_it_begins_anew(nvml):
    assert nvml("look", "GPU-1")["used_bytes"] == 0
    for _ in range(2):
        assert nvml("look", "GPU-1", device={"error": 15}) == {"error": "GPU is lost"}
    assert nvml("look", "GPU-1")["used_bytes"] == 0


# what is wrong


def look(listed=(), used=None, computing=None):
    used = sum(bytes_ or 0 for _, bytes_ in listed) if used is None else used
    computing = [pid for pid, _ in listed] if computing is None else computing
    return {"used_bytes": used, "listed": list(listed), "computing": computing}


def trouble(told, has_run=()):
    return occupants.trouble_of(told, has_run)[0]


@pytest.fixture(params=[True, False], ids=["all are seen", "in a container"])
def sees_all(request, monkeypatch):
    monkeypatch.setattr(occupants, "sees_all", lambda: request.param)
    return request.param


def test_an_empty_device_is_well(sees_all):
    assert trouble(look()) == trouble(look(used=GIB)) == ""


@pytest.mark.parametrize("told", [{"error": "GPU is lost"}, {"missing": "GPU is lost"}])
def test_what_nvml_cannot_tell_is_trouble_that_is_not_over_in_a_moment(told):
    assert occupants.trouble_of(told, ()) == ("the device is not well, NVML says: GPU is lost", False)


@needs_proc
def test_a_process_that_is_not_ours_is_named(sees_all):
    found = trouble(look([(1, 300 << 20), (HERE, 5)]))
    assert found.startswith("something else uses it: process 1 (")
    assert "300 MiB" in found
    assert str(HERE) not in found
    assert "MiB" not in trouble(look([(1, None)]))


@needs_proc
def test_what_only_draws_explains_its_memory_and_is_no_trouble(sees_all):
    assert trouble(look([(1, 3 * GIB)], computing=[])) == ""


@needs_proc
def test_our_own_processes_are_no_strangers(sees_all):
    assert trouble(look([(HERE, 9 * GIB)])) == ""
    assert trouble(look([(HERE, None)], used=9 * GIB)) == ""


def test_memory_that_no_process_explains_is_trouble(sees_all):
    assert "3072 MiB are taken" in trouble(look([(GONE, 3 * GIB)]))
    assert "3072 MiB are taken" in trouble(look(used=3 * GIB))


def test_it_may_be_what_an_own_process_keeps_that_nvml_does_not_list(sees_all):
    assert (trouble(look(used=3 * GIB), [HERE]) == "") is not sees_all
    assert trouble(look(used=3 * GIB), [GONE]) != ""


@needs_proc
def test_not_so_where_nvml_lists_that_process(sees_all):
    assert "2048 MiB are taken" in trouble(look([(HERE, GIB)], used=3 * GIB), [HERE])


# when it is looked at


@pytest.fixture
def watch():
    """Of a worker that runs nothing; its thread does not run."""
    return DeviceWatch(SimpleNamespace(device=Device("GPU-1", 0, "node"), stops=False))


def test_what_ended_by_itself_waits_for_no_look(watch):
    assert watch.has_looked_since(Execution(None, None))


def test_what_was_killed_waits_for_one_but_not_for_ever(watch, caplog):
    execution = Execution(None, None, pid=1, gone_since=time.monotonic())
    assert not watch.has_looked_since(execution)
    assert watch.wanted.is_set()
    execution.gone_since -= LONGEST_WAIT
    assert watch.has_looked_since(execution)
    assert "Nobody knows whether GPU GPU-1 is well" in caplog.text


def test_a_worker_that_stops_leaves_it_to_the_next(watch):
    watch._gpu_worker.stops = True
    assert watch.has_looked_since(Execution(None, None, pid=1))
