"""The GPUs of this host, as --gpu names them."""

import pytest

from celery_gpulease.devices import find_device, show_only
from celery_gpulease.exceptions import ConfigurationError


def test_a_worker_serves_the_index_that_it_is_told_and_no_gpu_needs_to_be_there():
    device = find_device("3", "node7", {})
    assert (device.id, device.index, device.host) == ("node7:3", 3, "node7")


@pytest.mark.parametrize("name", ["x", "-1", "99999", "\u0663", "GPU-1234", "0,1", ""])
def test_what_is_no_index_is_refused_and_said(name):
    with pytest.raises(ConfigurationError, match="--gpu"):
        find_device(name, "node7", {})


@pytest.mark.parametrize("visible", ["1,2", "", "GPU-abc"])
def test_an_inherited_cuda_visible_devices_without_the_gpu_is_refused(visible):
    with pytest.raises(ConfigurationError, match="CUDA_VISIBLE_DEVICES"):
        find_device("0", "node7", {"CUDA_VISIBLE_DEVICES": visible})


def test_an_inherited_cuda_visible_devices_with_the_gpu_is_fine():
    assert find_device("2", "node7", {"CUDA_VISIBLE_DEVICES": "1, 2"}).index == 2


def test_the_task_sees_its_gpu_only_in_pci_order():
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    show_only(find_device("1", "node7", environ), environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
