"""What others write into the broker is loaded only as `accept_content` says, and forms no key of another kind."""

import json
import os
import re
import uuid
from base64 import b64encode
from contextlib import contextmanager

import pytest
from celery import Celery
from kombu.serialization import dumps as dump_body

from celery_gpulease import ConfigurationError
from celery_gpulease.dispatch.ending import request_of
from celery_gpulease.ledger import keys
from celery_gpulease.ledger.answers import Ending
from tests.faults.conftest import world_on
from tests.faults.world import HOST, SOON, frozen
from tests.waiting import wait_until

#: The kinds of keys in the table of `ledger/keys.py`.
KINDS = {kind for line in keys.__doc__.splitlines() for kind in re.findall(r"(\w+)(?::[^,]*)?(?:,|  |$)", line[:21])}


class Bomb:
    """Whoever unpickles it makes this folder."""

    def __init__(self, fuse):
        self.fuse = str(fuse)

    def __reduce__(self):
        return os.mkdir, (self.fuse,)


@contextmanager
def publishing(world):
    """Publishes messages as somebody does who knows nothing of leases; each call returns the task's id."""
    with world.app.connection_for_write() as connection, connection.Producer(serializer="pickle") as producer:

        def publish(queue, name, args, *, protocol=2, headers=None, **options):
            task_id = uuid.uuid4().hex
            told = {"id": task_id, "task": name, "root_id": task_id}
            body = [args, {}, {}] if protocol == 2 else {**told, "args": args, "kwargs": {}}
            headers = {**(told if protocol == 2 else {}), **(headers or {})}
            producer.publish(body, exchange="", routing_key=queue, headers=headers, **options)
            return task_id

        yield publish


def test_nothing_loads_what_accept_content_does_not_allow(world, tmp_path):
    fuse = tmp_path / "exploded"
    bomb = Bomb(fuse)
    world.worker(0)
    world.processes.start("celery", "-A", "proj", "worker", "-c", "1", "-l", "info", name="plain").wait_for_log(
        "ready."
    )
    pickled = {"serializer": "pickle"}
    run = world.send("add", bomb, 1, **pickled)
    held = {how: world.send("add", bomb, 1, pool="none", **pickled) for how in ("cancelled", "revoked")}
    held["expired"] = world.send("add", bomb, 1, pool="none", expires=1, **pickled)
    world.sent = [held["expired"]]
    with publishing(world) as publish:
        for queue in ("celery", f"gpu.{HOST}:0"):
            publish(queue, "proj.add", [bomb, 1])
            publish(queue, "proj.add", [bomb, 1], protocol=1)
            publish(queue, "celery.starmap", [{"task": "proj.add"}, [[bomb, 1]]])
            publish(queue, "proj.add", [1, 2], headers={"gpulease": bomb.fuse})
    for words in (("pending",), ("status",), ("reconcile",), ("cancel", held["cancelled"])):
        assert world.gpulease(*words).exit_code == 0
    world.app.control.revoke(held["revoked"])
    for how in ("cancelled", "revoked", "expired"):
        world.ends(held[how], "REVOKED")
    for queue in ("celery", f"gpu.{HOST}:0"):
        wait_until(lambda queue=queue: not world.client.llen(queue), SOON, "the queue to be empty")
    wait_until(lambda: not world.client.exists(f"gpu:task:{run}"), SOON, "the refused task to end")
    last = world.send("add", 1, 2)
    world.succeeds(last)
    assert not fuse.exists()


@pytest.mark.long
def test_what_the_ledger_delivers_past_the_broker_is_not_loaded_either(redis_url, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    fuse, ledgers = tmp_path / "exploded", redis_url.removesuffix("0") + "1"
    with world_on(redis_url, tmp_path, gpulease_redis_url=ledgers) as world:
        assert not world.ledger.is_broker
        worker = world.worker(0)
        task = world.app.send_task("proj.add", (Bomb(fuse), 1), pool="default", serializer="pickle").id
        worker.wait_for_log("pickle")
        wait_until(lambda: not world.ledger.client.exists(f"gpu:task:{task}"), SOON, "the refused task to end")
        world.succeeds(world.send("add", 1, 2))
    assert not fuse.exists()


def test_the_bomb_goes_off_where_its_serializer_is_allowed(tmp_path):
    fuse = tmp_path / "exploded"
    app = Celery("proj", set_as_current=False, accept_content=["pickle"])
    content_type, encoding, body = dump_body([[Bomb(fuse)], {}, {}], "pickle")
    envelope = {
        "body": b64encode(body).decode(), "content-type": content_type, "content-encoding": encoding,
        "headers": {"id": "x"}, "properties": {},
    }  # fmt: skip
    ending = Ending("t", "x", "proj.add", "cancelled", 0, 0, json.dumps(envelope))
    request_of(Celery("proj", set_as_current=False), ending)
    assert not fuse.exists()
    request_of(app, ending)
    assert fuse.exists()


NASTY = ("x} lease:node7:0", "lease:node7:0", "*", "gpu:lease:node7:0", "a\nb", "\x01\x02", "[ab]", "..", "é'\"{}")


def test_a_task_id_from_outside_forms_no_key_of_another_kind(world):
    world.worker(0)
    running = world.send("wait_for", "go")
    world.started(running)
    lease = world.lease(0)
    for name in NASTY:
        world.send("add", 1, 2, task_id=name)
        world.send("add", 1, 2, task_id=f"later {name}", countdown=60)
    assert world.lease(0) == lease
    assert world.client.keys("gpu:lease:*") == [f"gpu:lease:{HOST}:0"]
    for name in NASTY:
        assert world.ledger.cancel(f"later {name}").taken
    assert world.gpulease("pending").exit_code == 0
    assert world.lease(0) == lease
    world.open("go")
    world.succeeds(running, *NASTY)


@pytest.mark.long
def test_what_somebody_writes_into_a_header_forms_no_key_and_stops_no_worker(world):
    world.worker(0)
    world.worker(1)
    claim = {"gpu": f"{HOST}:0", "token": f"k-{HOST}:0-1", "fence": 1, "delivery": 1}
    headers = [
        {"pool": "x} lease:node7:0"},
        {"pool": ["a"]},
        {"pin": "*"},
        {"pin": {"a": 1}},
        {"ticket": ["t"], "claim": claim},
        {"ticket": "t", "claim": {**claim, "token": {}}},
        {"ticket": "t", "claim": {**claim, "gpu": "x} lease:node7:0"}},
        {"ticket": "t", "claim": {**claim, "gpu": f"{HOST}:1"}},
        {"ticket": "t", "claim": claim},
        ["no", "dict"],
    ]
    queue, json_only = f"gpu.{HOST}:0", {"serializer": "json"}
    with publishing(world) as publish:
        told = [publish(queue, "proj.add", [1, 2], headers={"gpulease": header}, **json_only) for header in headers]
        for header in headers:
            publish(queue, "proj.nowhere", [1, 2], headers={"gpulease": header}, **json_only)
    for task in told[:4]:
        assert isinstance(world.ends(task, "FAILURE"), ConfigurationError)
    wait_until(lambda: not world.client.llen(f"gpu.{HOST}:0"), SOON, "the queue to be empty")
    world.succeeds(*(world.send("add", n, n, gpu=f"{HOST}:{n}") for n in range(2)))
    kinds = {key.split(":")[1] for key in world.client.keys("gpu:*")}
    assert kinds <= KINDS
    leases = set(world.client.keys("gpu:lease:*"))  # a result can be read a moment before the GPU is free
    assert leases <= {f"gpu:lease:{HOST}:{gpu}" for gpu in range(2)}


@pytest.mark.long
def test_a_message_that_somebody_moves_to_another_gpus_queue_runs_on_its_own_gpu_only(world):
    worker = world.worker(0)
    world.worker(1)
    with frozen(worker):
        for one in world.client.client_list():  # else Redis hands the message to who is frozen
            if one["cmd"] == "brpop" and world.client.client_info()["id"] != one["id"]:
                world.client.client_kill_filter(_id=one["id"])
        task = world.send("add", 1, 2, gpu=f"{HOST}:0")
        assert world.client.lmove(f"gpu.{HOST}:0", f"gpu.{HOST}:1")
        wait_until(lambda: not world.client.llen(f"gpu.{HOST}:1"), SOON, "the other worker to take it")
    world.succeeds(task)
    assert [run.gpu for run in world.runs(task)] == [f"{HOST}:0"]
