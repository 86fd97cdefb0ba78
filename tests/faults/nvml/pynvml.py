"""NVML's Python module as a worker's own process finds it, with devices that a test makes up in a file.

The file (TEST_NVML, JSON) is read anew at each call::

    {"error": 999, "hangs": true, "devices": [{"uuid": "GPU-…", "name": "…", "total": 1, "reserved": 0, "used": 0,
      "mig": false, "error": 15, "hides": ["processes", "memory"], "compute": [[pid, bytes]], "graphics": []}]}

Each look at the processes of a device is a dot in a file beside it. Only what `worker/nvml_process.py` needs is here,
as NVIDIA's reference of the NVML API has it.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
NVML_ERROR_UNKNOWN = 999
nvmlMemory_v2 = 0x02000028

WORDS = {3: "Not Supported", 6: "Not Found", 9: "Driver Not Loaded", 15: "GPU is lost", 999: "Unknown Error"}
_opened = []


class NVMLError(Exception):
    """What NVML refuses."""

    def __new__(cls, value):
        """By its number."""
        return super().__new__({9: NVMLError_DriverNotLoaded, 12: NVMLError_LibraryNotFound}.get(value, cls))

    def __init__(self, value):
        super().__init__(value)
        self.value = value

    def __str__(self):
        return WORDS.get(self.value, f"NVML Error with code {self.value}")


class NVMLError_LibraryNotFound(NVMLError):
    """There is no libnvidia-ml."""


class NVMLError_DriverNotLoaded(NVMLError):
    """There is no driver."""


@dataclass
class Memory:
    """Bytes. The older kind of answer counts what the driver reserves as used."""

    total: int
    used: int


@dataclass
class Process:
    """One that uses a device."""

    pid: int
    usedGpuMemory: int | None


def _state(*, is_init=False):
    state = json.loads(Path(os.environ["TEST_NVML"]).read_text())
    while state.get("hangs"):
        time.sleep(0.05)
        state = json.loads(Path(os.environ["TEST_NVML"]).read_text())
    if not is_init and not _opened:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    if state.get("error"):
        raise NVMLError(state["error"])
    if state.get("crashes"):
        os._exit(7)
    return state


def _device(uuid):
    for one in _state()["devices"]:
        if one["uuid"] == uuid:
            if one.get("error"):
                raise NVMLError(one["error"])
            return one
    raise NVMLError(NVML_ERROR_NOT_FOUND)


def _shown(uuid, what):
    found = _device(uuid)
    if what in found.get("hides", ()):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return found


def nvmlInit():
    _state(is_init=True)
    _opened.append(True)


def nvmlShutdown():
    if not _opened:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    _opened.pop()


def nvmlDeviceGetCount():
    return len(_state()["devices"])


def nvmlDeviceGetHandleByIndex(index):
    return _device(_state()["devices"][index]["uuid"])["uuid"]


def nvmlDeviceGetHandleByUUID(uuid):
    return _device(uuid)["uuid"]


def nvmlDeviceGetUUID(handle):
    return handle


def nvmlDeviceGetName(handle):
    return _device(handle)["name"]


def nvmlDeviceGetMigMode(handle):
    return [int(_shown(handle, "mig")["mig"])] * 2


def nvmlDeviceGetMemoryInfo(handle, version=None):
    one = _shown(handle, "memory_v2" if version else "memory")
    return Memory(one["total"], one["used"] + (0 if version else one["reserved"]))


def _processes(handle, kind, version):
    with Path(os.environ["TEST_NVML"]).with_suffix(".looks").open("a") as looks:
        looks.write(".")
    if version in _device(handle).get("hides", ()):
        raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND)
    return [Process(pid, used) for pid, used in _shown(handle, "processes")[kind]]


def nvmlDeviceGetComputeRunningProcesses_v3(handle):
    return _processes(handle, "compute", "v3")


def nvmlDeviceGetComputeRunningProcesses_v2(handle):
    return _processes(handle, "compute", "v2")


def nvmlDeviceGetGraphicsRunningProcesses_v3(handle):
    return _processes(handle, "graphics", "v3")


def nvmlDeviceGetGraphicsRunningProcesses_v2(handle):
    return _processes(handle, "graphics", "v2")
