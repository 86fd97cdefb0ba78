"""What a GPU's worker cannot do is refused at start, with what to do about it, and leaves nothing registered."""

import json
import sys

import pytest

from tests.faults.world import HOST, PROJECT, SOON
from tests.waiting import wait_until


def refused(world, *options, conf=None, **env):
    """What a worker says that does not start; checks that it left nothing."""
    before = set(world.client.scan_iter("gpu:*"))
    if conf:
        env["TEST_CONF"] = json.dumps({**world.conf, **conf})
    command = ("celery", "-A", "proj", "worker", "-l", "info", *options)
    worker = world.processes.start(*command, name="refused", **env)
    assert worker.wait() == 1, repr(worker)
    assert set(world.client.scan_iter("gpu:*")) == before
    assert "Traceback" not in worker.log, repr(worker)
    return worker.log


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"gpulease_heartbeat_interval": 2.0}, "gpulease_heartbeat_interval"),
        ({"gpulease_lease_tll": 2.0}, "did you mean gpulease_lease_ttl"),
        ({"gpulease_redis_url": "redis://127.0.0.1:1/9"}, "gpulease_redis_url"),
        ({"gpulease_notifications": "sometimes"}, "gpulease_notifications"),
    ],
)
def test_a_wrong_setting_is_named(world, conf, named):
    assert named in refused(world, "--gpu", "0", conf=conf)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--gpu", "x"), "--gpu"),
        (("--gpu", "GPU-1234"), "NVML"),
        (("--gpu", "0", "--gpu-pools", "a b"), "pool"),
        (("--gpu", "0", "--gpu-pools", ""), "pool ''"),
        (("--gpu", "0", "--autoscale", "4,1"), "--autoscale"),
        (("--gpu", "0", "--pool-start-method", "spawn"), "--pool-start-method"),
        (("--gpu-pools", "a100"), "--gpu"),
    ],
)
def test_a_wrong_option_is_named(world, options, named):
    assert named in refused(world, *options)


def test_an_inherited_cuda_visible_devices_without_the_gpu_is_named(world):
    assert "CUDA_VISIBLE_DEVICES" in refused(world, "--gpu", "0", CUDA_VISIBLE_DEVICES="1,2")


@pytest.mark.parametrize("green", ["gevent", "eventlet"])
def test_green_pools_are_refused_with_the_reason(world, green, tmp_path):
    script = tmp_path / "start.py"  # the pool's own package need not be installed: Celery imports it before it asks us
    script.write_text(
        f"import sys, types\n"
        f"pool = types.ModuleType('celery.concurrency.{green}')\n"
        "from celery.concurrency.solo import TaskPool as Solo\n"
        f"class TaskPool(Solo): __module__ = 'celery.concurrency.{green}'\n"
        f"pool.TaskPool = TaskPool\n"
        f"sys.modules['celery.concurrency.{green}'] = pool\n"
        "from proj import app\n"
        "worker = app.Worker(pool_cls=TaskPool, gpu='0', hostname='x@y')\n"
    )
    process = world.processes.start(sys.executable, str(script), name="green", PYTHONPATH=str(PROJECT))
    assert process.wait() == 1
    assert green in process.log
    assert "prefork" in process.log
    assert list(world.client.scan_iter("gpu:*")) == []


def test_a_second_worker_of_a_gpu_is_refused_by_the_firsts_name_and_the_first_goes_on(world):
    world.worker(0)
    task = world.send("wait_for", "go")
    world.started(task)
    second = world.processes.start("celery", "-A", "proj", "worker", "--gpu", "0", "-n", "second@x", name="second")
    assert second.wait() == 1
    assert "GPUInUse" in second.log
    assert f"gpu0@{HOST}" in second.log
    world.open("go")
    world.succeeds(task, world.send("add", 1, 2))


def test_a_worker_is_named_after_its_gpu_unless_it_is_given_a_name(world):
    world.worker(0)
    world.worker(1, "-n", "mine@%h")
    assert world.row(0)["worker"] == f"gpu0@{HOST}"
    assert world.row(1)["worker"].startswith("mine@")


def test_options_without_effect_are_said(world):
    worker = world.worker(0, "-c", "4", "-Q", "other")
    wait_until(lambda: "-c has no effect" in worker.log, SOON, "the warning")
    assert "-Q has no effect" in worker.log


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_other_pools_serve_a_gpu_and_say_what_they_cannot_do(world, pool):
    worker = world.worker(0, "-P", pool)
    assert "cannot stop a task" in worker.log
    task = world.send("add", 1, 2)
    world.succeeds(task, world.send("retry_once", 0), world.send("add", 3, 4))
    assert world.runs(task)[0].facts["visible"] == "0"
    world.ends(world.send("fail"), "FAILURE")


def test_without_gpu_it_is_celerys_own_worker(world):
    plain = world.processes.start("celery", "-A", "proj", "worker", "-c", "2", "-l", "info", name="plain")
    plain.wait_for_log(" ready.")
    world.app.send_task("proj.plain")
    wait_until(lambda: any(line["what"] == "plain" for line in world.journal()), SOON, "the plain task")
    assert "Serving GPU" not in plain.log
    assert list(world.client.scan_iter("gpu:*")) == []
