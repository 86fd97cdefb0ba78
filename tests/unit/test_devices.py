"""The GPUs of this host, as --gpu names them."""

import pytest

from celery_gpulease.devices import Hardware, find_device, show_only
from celery_gpulease.exceptions import ConfigurationError

FOUND = (
    Hardware(0, "GPU-aa11", "NVIDIA Test", 1 << 34),
    Hardware(1, "GPU-bb22", "NVIDIA Test", 1 << 34),
    Hardware(2, trouble="NVML says: GPU is lost"),
)


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


# with NVML


@pytest.mark.parametrize("name", ["1", "01", "GPU-bb22"])
def test_a_device_is_named_by_its_index_or_its_uuid_and_is_the_same(name):
    device = find_device(name, "node7", {}, FOUND)
    assert (device.id, device.index, device.alias, device.uuid) == ("GPU-bb22", 1, "node7:1", "GPU-bb22")
    assert (device.model, device.memory_bytes, device.queue) == ("NVIDIA Test", 1 << 34, "gpu.GPU-bb22")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "3",
            r"NVML knows no such GPU here; there are 0 \(GPU-aa11, NVIDIA Test\), 1 .*, 2 \(NVML says: GPU is lost\)",
        ),
        ("GPU-bb2", "NVML knows no such GPU here"),
        ("", "NVML knows no such GPU here"),
        ("MIG-aa11", "one whole GPU, not a part"),
        ("2", "GPU 2 cannot be served: NVML says: GPU is lost"),
    ],
)
def test_what_nvml_does_not_know_or_cannot_reach_is_refused_and_those_that_are_there_are_named(name, words):
    with pytest.raises(ConfigurationError, match=words):
        find_device(name, "node7", {}, FOUND)


def test_where_nvml_finds_none_it_says_so():
    with pytest.raises(ConfigurationError, match="there is none"):
        find_device("0", "node7", {}, ())


@pytest.mark.parametrize("visible", ["0", "GPU-aa11", "GPU-aa, GPU-cc"])
def test_an_inherited_cuda_visible_devices_may_name_uuids_by_their_beginning(visible):
    assert find_device("0", "node7", {"CUDA_VISIBLE_DEVICES": visible}, FOUND).index == 0
    with pytest.raises(ConfigurationError, match="does not contain GPU 1"):
        find_device("GPU-bb22", "node7", {"CUDA_VISIBLE_DEVICES": visible}, FOUND)
