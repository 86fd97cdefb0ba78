"""The GPUs of this host, as `--gpu` names them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.model import Device

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping


INDEX: Final = re.compile(r"[0-9]{1,4}")


def find_device(name: str, host: str, environ: Mapping[str, str] = os.environ) -> Device:
    """The device that `--gpu` names. Nothing needs to be there: a worker serves the index that it is told.

    Raises:
        ConfigurationError: It is no index, or not among those that this process may use.
    """
    if not INDEX.fullmatch(name):
        message = f"--gpu {name!r}: name a GPU by its index, such as --gpu 0 (a UUID cannot be resolved without NVML)"
        raise ConfigurationError(message)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and name not in [one.strip() for one in visible.split(",")]:
        message = (
            f"CUDA_VISIBLE_DEVICES is {visible!r} and does not contain GPU {name}: --gpu takes the host's index; "
            "unset the variable, the worker sets it for its tasks"
        )
        raise ConfigurationError(message)
    return Device(id=f"{host}:{int(name)}", index=int(name), host=host)


def show_only(device: Device, environ: MutableMapping[str, str] = os.environ) -> None:
    """Lets this process, and all that it starts, see one GPU only."""
    environ["CUDA_VISIBLE_DEVICES"] = str(device.index)
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
