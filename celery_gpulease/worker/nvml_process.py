"""The process that asks NVML, for `celery_gpulease.worker.nvml`, which starts it: a line is a question or its answer.

It imports nothing of ours: NVML's library, which comes with the driver, and its Python module are all that it needs.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Answer = dict[str, Any]

#: Errors by which a device, a driver or a container says that it does not tell this.
UNTOLD: Final = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH")


def main() -> None:
    """Answers until nobody asks any more."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed is none
    asked = NVML(import_module("pynvml"))
    for line in sys.stdin:
        answers.write(json.dumps(asked.answer(*line.split())) + "\n")
        answers.flush()


class NVML:
    """NVML, from its first question on.

    After an error it is left, so that the device can be reset, and begun anew with the next question.

    Args:
        nvml: Its Python module.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._untold = {getattr(nvml, f"NVML_ERROR_{name}", None) for name in UNTOLD}
        self._is_open = False

    def answer(self, question: str, *about: str) -> Answer:
        """Answers 'list', or 'look' and a UUID. `error` says what NVML says, `missing` that there is none here."""
        nvml = self._nvml
        try:
            if not self._is_open:
                nvml.nvmlInit()
                self._is_open = True
            return {"devices": self._list()} if question == "list" else self._look(*about)
        except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded) as error:
            return {"missing": str(error)}
        except nvml.NVMLError as error:
            self._leave()
            return {"error": str(error)}

    def _leave(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError as error:
                print(f"NVML cannot be left: {error}", file=sys.stderr)  # noqa: T201

    def _list(self) -> list[Answer]:
        return [self._describe(index) for index in range(self._nvml.nvmlDeviceGetCount())]

    def _describe(self, index: int) -> Answer:
        nvml = self._nvml
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = self._told(lambda: nvml.nvmlDeviceGetMemoryInfo(device).total)
            mig = self._told(lambda: nvml.nvmlDeviceGetMigMode(device)[0])
            return {
                "index": index,
                "uuid": text(nvml.nvmlDeviceGetUUID(device)),
                "model": text(nvml.nvmlDeviceGetName(device)),
                "memory_bytes": memory or 0,
                "has_mig": bool(mig),
            }
        except nvml.NVMLError as error:  # this device's: the others can be served
            return {"index": index, "error": str(error)}

    def _look(self, uuid: str) -> Answer:
        device = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        computing = self._processes("Compute", device)
        listed = {
            one.pid: one.usedGpuMemory for one in [*(self._processes("Graphics", device) or []), *(computing or [])]
        }
        return {
            "used_bytes": self._used(device),
            "listed": None if computing is None else list(listed.items()),
            "computing": [one.pid for one in computing or []],
        }

    def _processes(self, kind: str, device: Any) -> list[Any] | None:
        """None where they are not told, as on WSL."""
        for version in ("v3", "v2"):  # a driver has those that its age allows
            ask = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}")
            if (found := self._told(partial(ask, device))) is not None:
                return list(found)
        return None

    def _used(self, device: Any) -> int | None:
        """What is in use, without what the driver keeps for itself where it knows how much that is."""
        ask = self._nvml.nvmlDeviceGetMemoryInfo
        newer: int | None = self._told(lambda: ask(device, self._nvml.nvmlMemory_v2).used)
        return self._told(lambda: ask(device).used) if newer is None else newer

    def _told(self, ask: Callable[[], Any]) -> Any:
        """None where it is not told here."""
        try:
            return ask()
        except self._nvml.NVMLError as error:
            if error.value in self._untold:
                return None
            raise


def text(told: str | bytes) -> str:
    """Older modules answer in bytes."""
    return told.decode(errors="replace") if isinstance(told, bytes) else told


if __name__ == "__main__":
    main()
