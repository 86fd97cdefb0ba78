"""Names and claims."""

import pytest

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.model import Claim, Device, check_gpu, check_pool


@pytest.mark.parametrize("name", ["a100", "A_b.c-1", "x" * 64])
def test_a_pools_name_is_letters_digits_and_a_few_signs(name):
    assert check_pool(name) == name


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a:b", None, 5, "é", 'a"'])
def test_any_other_name_of_a_pool_is_refused(name):
    with pytest.raises(ConfigurationError, match="pool"):
        check_pool(name)


@pytest.mark.parametrize("name", ["node7:0", "GPU-8f6d-1a", "h.example.org:12"])
def test_a_gpu_is_named_by_host_and_index_or_by_uuid(name):
    assert check_gpu(name) == name


@pytest.mark.parametrize("name", ["", 'a"b', "a b", 0, None, "x" * 129, "rubbish", "node7"])
def test_any_other_name_of_a_gpu_is_refused(name):
    with pytest.raises(ConfigurationError, match="gpu"):
        check_gpu(name)


def test_a_devices_queue_and_alias_come_from_its_names():
    device = Device(id="GPU-1", index=3, host="node7", uuid="GPU-1")
    assert (device.queue, device.alias) == ("gpu.GPU-1", "node7:3")


def test_a_header_without_a_claim_gives_none():
    assert [Claim.from_header(header) for header in (None, {}, {"ticket": "t"}, "x", {"claim": None})] == [None] * 5


CLAIM = {"gpu": "n:0", "token": "k-n:0-7", "fence": 7, "delivery": 1}


def test_a_claim_is_read_from_the_header():
    assert Claim.from_header({"ticket": "t", "claim": CLAIM}) == Claim("t", "n:0", "k-n:0-7", 7, 1)


@pytest.mark.parametrize(
    "header",
    [
        {"claim": {}},
        {"ticket": "t", "claim": {**CLAIM, "fence": "x"}},
        {"ticket": "t", "claim": {**CLAIM, "fence": 1 << 60}},
        {"ticket": "t", "claim": {**CLAIM, "token": "k"}},
        {"ticket": ["t"], "claim": CLAIM},
        {"ticket": "t", "claim": {**CLAIM, "token": {}}},
        {"ticket": "t", "claim": {**CLAIM, "fence": float("inf")}},
        {"ticket": "t", "claim": {**CLAIM, "gpu": ["n:0"]}},
        {"ticket": "t", "claim": {**CLAIM, "gpu": "x} lease:n:0", "token": "k-x} lease:n:0-7"}},
    ],
)
def test_a_claim_that_was_written_by_hand_is_none(header):
    assert Claim.from_header(header) is None
