"""Why a task waits."""

import pytest

from celery_gpulease.ledger.reasons import why_gpu_waits, why_not_due, why_pool_waits
from celery_gpulease.ledger.views import GPURow


def gpu(number, state, reason=None, pools=("a100",)):
    nothing = dict.fromkeys(
        ("task_id", "task", "worker", "held_seconds", "ttl_seconds", "fence", "index", "model", "memory_bytes")
    )
    return GPURow(f"node:{number}", list(pools), state, reason, name=f"node:{number}", **nothing)


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        ([], "no GPU serves pool 'a100'"),
        ([gpu(0, "leased", pools=["default"])], "no GPU serves pool 'a100'"),
        ([gpu(0, "leased"), gpu(1, "leased")], "every GPU of pool 'a100' is leased"),
        ([gpu(0, "offline"), gpu(1, "draining")], "every GPU of pool 'a100' is drained or offline"),
        ([gpu(0, "quarantined", "it is unwell")], "every GPU of pool 'a100' is quarantined"),
        ([gpu(0, "free", "wanted by me"), gpu(1, "leased")], "every GPU of pool 'a100' is leased or wanted by me"),
        ([gpu(0, "free"), gpu(1, "leased")], "a GPU of pool 'a100' is free, and about to take it"),
    ],
)
def test_what_keeps_a_pool_waiting(gpus, reason):
    assert why_pool_waits("a100", gpus) == reason


def test_what_keeps_a_pinned_task_waiting():
    assert why_gpu_waits("node:0", [gpu(0, "draining"), gpu(1, "free")]) == "pinned to node:0, which is drained"
    assert why_gpu_waits("node:9", [gpu(0, "free")]) == "pinned to node:9, which no worker has ever served"


def test_what_died_before_says_so_while_it_waits():
    assert why_not_due(59.7, 1) == "not due yet: in 60 s"
    assert why_not_due(2.0, 2) == "not due yet: in 2 s, since its runs died 2 times"
