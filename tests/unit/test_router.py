"""GPURouter: pools for senders that know tasks by name only."""

import re

import pytest
from celery import Celery

from celery_gpulease import ConfigurationError, GPURouter, GPUTask

app = Celery("router", set_as_current=False)


@app.task(base=GPUTask)
def on_gpu():
    pass


@app.task
def plain():
    pass


def test_the_first_pattern_that_matches_counts():
    router = GPURouter({"render.fast": "t4", "render.*": "a100", re.compile(r"train\.(a|b)"): "h100"})
    pools = [(router(name) or {}).get("gpulease_pool") for name in ("render.fast", "render.x", "train.b", "train.c")]
    assert pools == ["t4", "a100", "h100", None]


def test_a_registered_plain_task_is_left_to_the_other_routers():
    router = GPURouter({"*": "a100"})
    assert router("x", task=plain) is None
    assert router("x", task=on_gpu) == {"gpulease_pool": "a100"}


@pytest.mark.parametrize("pools", [{"x": "no pool"}, {"x": ""}, ["x"], "x"])
def test_what_is_no_pool_is_refused_where_the_router_is_made(pools):
    with pytest.raises(ConfigurationError):
        GPURouter(pools)
