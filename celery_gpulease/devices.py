"""The GPUs of this host, as `--gpu` names them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.model import Device

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence


INDEX: Final = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True)
class Hardware:
    """A device of this host, as NVML tells of it.

    Attributes:
        index: In NVML's order, which is that of the PCI bus.
        uuid: Empty where there is no NVML, or where it cannot reach the device.
        model: Its name.
        memory_bytes: All that it has; 0 where that is not told.
        trouble: Why it cannot be served, else empty.
    """

    index: int
    uuid: str = ""
    model: str = ""
    memory_bytes: int = 0
    trouble: str = ""

    def __str__(self) -> str:
        """For people."""
        about = ", ".join(filter(None, (self.uuid, self.model)))
        return f"{self.index} ({about or self.trouble})"

    def is_named(self, name: str) -> bool:
        """Is this its index, or its UUID?"""
        return int(name) == self.index if INDEX.fullmatch(name) else name == self.uuid != ""

    def is_among(self, visible: str) -> bool:
        """Does such a CUDA_VISIBLE_DEVICES contain it? That may name a UUID by its beginning."""
        names = [one.strip() for one in visible.split(",")]
        return any(one == str(self.index) or (one.startswith("GPU-") and self.uuid.startswith(one)) for one in names)


def find_device(
    name: str, host: str, environ: Mapping[str, str] = os.environ, found: Sequence[Hardware] | None = None
) -> Device:
    """The device that `--gpu` names.

    Args:
        name: An index or, where NVML is there, a UUID.
        host: The name of this host.
        environ: `CUDA_VISIBLE_DEVICES` is looked up here.
        found: What NVML has found here. None where there is no NVML: then no GPU needs to be there either, and a worker
            serves the index that it is told.

    Raises:
        ConfigurationError: There is no such device, it cannot be served, or it is not among those that this process may
            use.
    """
    hardware = _told(name) if found is None else _found(name, found)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not hardware.is_among(visible):
        message = (
            f"CUDA_VISIBLE_DEVICES is {visible!r} and does not contain GPU {hardware.index}: --gpu takes the host's "
            "index; unset the variable, the worker sets it for its tasks"
        )
        raise ConfigurationError(message)
    return Device(
        id=hardware.uuid or f"{host}:{hardware.index}",
        index=hardware.index,
        host=host,
        uuid=hardware.uuid,
        model=hardware.model,
        memory_bytes=hardware.memory_bytes,
    )


def _told(name: str) -> Hardware:
    if INDEX.fullmatch(name):
        return Hardware(int(name))
    message = (
        f"--gpu {name!r}: name a GPU by its index, such as --gpu 0 (a UUID cannot be resolved without NVML: install "
        "celery-gpulease[nvml], where the driver is)"
    )
    raise ConfigurationError(message)


def _found(name: str, found: Sequence[Hardware]) -> Hardware:
    for one in found:
        if one.is_named(name):
            if one.trouble:
                message = f"--gpu {name!r}: GPU {one.index} cannot be served: {one.trouble}"
                raise ConfigurationError(message)
            return one
    there = f"there are {', '.join(map(str, found))}" if found else "there is none"
    about = "a lease is one whole GPU, not a part of one" if name.startswith("MIG-") else "NVML knows no such GPU here"
    message = f"--gpu {name!r}: {about}; {there}"
    raise ConfigurationError(message)


def show_only(device: Device, environ: MutableMapping[str, str] = os.environ) -> None:
    """Lets this process, and all that it starts, see one GPU only."""
    environ["CUDA_VISIBLE_DEVICES"] = str(device.index)
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
