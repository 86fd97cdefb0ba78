"""`gpulease doctor`: each thing that it looks for, found; and where all is well, nothing."""

import json
import re
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_gpulease import GPULease, GPUTask
from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.ledger.rights import SHOWN_ELSEWHERE, tried
from celery_gpulease.operate.cli import gpulease
from celery_gpulease.reconcile.server import foreign_keys
from tests.integration.ledger.world import LONG_AGO, World
from tests.rights import rights_in_readme

# Celery's result backends leave their sockets to the garbage collector, and call what redis-py calls old.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex"),
]


@contextmanager
def app_on(url, **conf):
    with Celery("proj", broker=url, backend=url, set_as_current=False) as app:
        app.conf.update(conf)
        GPULease(app)

        @app.task(base=GPUTask, name="proj.render", shared=False)
        def render():
            pass

        @app.task(name="proj.plain", shared=False, acks_late=True, time_limit=7200)
        def plain():
            pass

        yield app


def examined(app, *options):
    result = CliRunner().invoke(gpulease, ("doctor", *options), obj=SimpleNamespace(app=app))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def found(app):
    """What is wrong, by the name of the check."""
    code, output = examined(app, "--json")
    wrong = {one["check"]: one["what"] for one in json.loads(output) if not one["is_note"]}
    assert code == (1 if wrong else 0)
    return wrong


@pytest.fixture(scope="module")
def sound_server(server_binary):
    """A server as doctor would have it."""
    flags = ("--notify-keyspace-events", "Kgxe")
    with EmbeddedServer("--appendonly", "yes", *flags, binary=server_binary) as server:
        yield server


@pytest.fixture
def app(sound_server):
    visible = {"broker_transport_options": {"visibility_timeout": 7200}}
    with app_on(sound_server.url, **visible) as app:
        app.gpulease.ledger.client.flushall()
        yield app
        app.gpulease.ledger.client.close()


@pytest.fixture
def world(app):
    made = World(app.gpulease.ledger)
    yield made
    made.close()


@pytest.fixture
def server_set(app):
    """Sets the server's configuration, for one test."""
    client, before = app.gpulease.ledger.client, {}

    def to(name, value):
        before.setdefault(name, client.config_get(name)[name])
        client.config_set(name, value)

    yield to
    for name, value in before.items():
        client.config_set(name, value)


def test_where_all_is_well_nothing_is_found_and_nothing_is_left_behind(app):
    code, output = examined(app)
    assert (code, output.splitlines()[-1]) == (0, "nothing found in 25 checks")
    assert "FOUND" not in output
    assert app.gpulease.ledger.client.keys() == []


def test_each_finding_is_printed_with_its_cure(app, server_set):
    server_set("maxmemory-policy", "allkeys-lru")
    code, output = examined(app)
    assert code == 1
    assert re.search(r"FOUND  eviction policy: maxmemory-policy is allkeys-lru.*\n +cure: set .* noeviction\n", output)
    assert output.endswith("1 finding in 25 checks\n")


@pytest.mark.parametrize(("save", "is_wrong"), [("", True), ("3600 1", False)])
def test_a_server_that_keeps_nothing_is_found_and_one_that_saves_now_and_then_is_noted(app, server_set, save, is_wrong):
    server_set("appendonly", "no")
    server_set("save", save)
    assert ("persistence" in found(app)) == is_wrong
    assert "appendonly yes" in examined(app)[1]


@pytest.mark.parametrize("flags", ["", "Kg", "Egx"])
def test_events_that_do_not_come_are_found_where_a_worker_needs_them(app, world, server_set, flags):
    server_set("notify-keyspace-events", flags)
    assert "notifications" not in found(app)
    assert "switches notify-keyspace-events on" in examined(app)[1]
    world.join()
    assert "published no event for a probe key" in found(app)["notifications"]


def test_events_are_not_tried_where_they_are_not_wanted(sound_server):
    with app_on(sound_server.url, gpulease_notifications="off") as app:
        assert "gpulease_notifications is off" in examined(app)[1]


def test_where_redis_is_away_that_is_said_and_the_settings_are_looked_at_all_the_same():
    with app_on("redis://127.0.0.1:1", task_always_eager=True) as app:
        wrong = found(app)
    assert "does not answer" in wrong["Redis"]
    assert "without a lease" in wrong["eager tasks"]


def test_a_broker_that_is_away_is_named(sound_server):
    with app_on("amqp://127.0.0.1:1//", result_backend=None, gpulease_redis_url=sound_server.url) as app:
        assert "the broker does not answer" in found(app)["broker"]


def test_an_app_without_gpulease_is_told_so_and_one_whose_modules_are_broken(sound_server):
    with Celery("bare", broker=sound_server.url, set_as_current=False) as app:
        app.conf.imports = ("no_such_module_of_theirs",)
        wrong = found(app)
    assert "call GPULease(app)" in wrong["settings"]
    assert "no_such_module_of_theirs" in wrong["modules"]


@pytest.mark.parametrize(
    "conf",
    [
        {"gpulease_lease_ttl": "long"},
        {"gpulease_leese_ttl": 3},
        {"broker_transport_options": {"priority_steps": [3, 6]}},
        {"broker_port": 1},
    ],
)
def test_a_setting_with_which_nothing_works_is_named(sound_server, conf):
    with app_on(sound_server.url, **conf) as app:
        assert next(iter(conf)) in found(app)["settings"]


def test_plain_tasks_that_outlast_the_visibility_timeout_are_named(sound_server):
    with app_on(sound_server.url) as app:
        assert "proj.plain (7200 s)" in found(app)["visibility timeout"]


def test_a_right_that_is_missing_is_named(app, sound_server):
    rights = [one for one in rights_in_readme()[0] if one not in ("+zadd", "+evalsha")]
    assert [one for one in refused(app, sound_server, rights) if "refuses" in one] == [
        "FOUND  rights: the server refuses evalsha, zadd"
    ]


def test_many_rights_that_are_missing_are_one_finding(app, sound_server):
    rights = [one for one in rights_in_readme()[0] if not one.startswith(("+z", "+h", "+x", "+s"))]
    (named,) = [one for one in refused(app, sound_server, rights) if "refuses" in one]
    assert {"zadd", "hset", "xadd", "sadd"} <= set(named.partition("refuses ")[2].split(", "))


def test_with_the_rights_of_readme_nothing_is_refused(app, sound_server):
    assert refused(app, sound_server, rights_in_readme()[0]) == []


def test_a_hosted_server_that_refuses_config_is_asked_by_info(app, sound_server, server_set):
    rights = [one for one in rights_in_readme()[0] if not one.startswith("+config")]
    assert refused(app, sound_server, rights) == []
    server_set("maxmemory-policy", "allkeys-lru")
    (wrong,) = refused(app, sound_server, rights)
    assert wrong.startswith("FOUND  eviction policy: maxmemory-policy is allkeys-lru")


def test_a_server_that_refuses_to_write_is_found(app, server_set):
    server_set("maxmemory", "1")
    wrong = found(app)
    assert "the server refuses" in wrong["rights"]
    assert "maxmemory" in wrong["Redis"]


def refused(app, server, rights):
    """What doctor finds, and what it says that it may not ask, as a user who has these rights."""
    client = app.gpulease.ledger.client
    client.execute_command("ACL", "SETUSER", "lease", "reset", "on", ">s3cret", *rights)
    options = {"username": "lease", "password": "s3cret"}
    visible = {"visibility_timeout": 7200}
    try:
        with app_on(server.url, gpulease_redis_options=options, broker_transport_options=visible) as restricted:
            lines = examined(restricted)[1].splitlines()
    finally:
        client.acl_deluser("lease")
    return [line.partition(": th")[0] + ": " + line.partition(": ")[2].partition(":")[0] if "rights" in line else line
            for line in lines if "FOUND" in line or "may not ask" in line]  # fmt: skip


def test_every_right_of_readme_is_tried_out(app):
    named = {one[1:] for one in rights_in_readme()[0] if one.startswith("+")}
    commands = {str(command[0]).lower().replace(" ", "|") for command in tried(app.gpulease.ledger)}
    assert commands | SHOWN_ELSEWHERE == named


def test_tasks_for_a_pool_that_nobody_serves_are_found(app, world):
    world.hold(pool="a100")
    world.hold(pool="a100")
    assert "pool a100 has 2 tasks waiting, and no GPU has ever served it" in found(app)["lines that nobody serves"]


def test_a_pool_that_is_called_nearly_as_one_that_is_served_is_asked_for(app, world):
    world.join(pools=("default", "a100"))
    world.hold(pool="a10")
    world.hold(pool="render")
    lines = [line for line in examined(app)[1].splitlines() if "has ever served it" in line]
    assert [line.partition("served it")[2] for line in lines] == [" (did you mean a100?)", ""]


def test_tasks_are_found_that_wait_for_gpus_of_which_none_is_in_service(app, world):
    worker = world.join(pools=("a100",))
    worker.claim()
    world.ledger.drain("node:0", drained=True)
    world.hold(pool="a100")
    assert "every GPU that serves it is draining" in found(app)["lines that nobody serves"]
    world.ledger.drain("node:0", drained=False)
    worker.leave()
    world.deafen("node:0")
    world.hold(pool="a100")
    assert "every GPU that serves it is offline" in found(app)["lines that nobody serves"]


def test_tasks_that_are_pinned_to_nobody_are_found_and_those_that_wait_for_a_busy_gpu_are_not(app, world):
    world.join().claim()
    world.stranger_takes()
    world.hold()
    world.hold(pin="node:0")
    world.hold(pin="node:9")
    words = "GPU node:9 has 1 task waiting, and no worker has ever served it"
    assert found(app)["lines that nobody serves"] == words
    assert "cure: start its worker, or cancel them: `gpulease cancel TASK_ID` (`gpulease p" in examined(app)[1]


def test_the_queue_of_a_gpu_that_does_not_exist_is_found(app, world):
    world.join()
    world.client.lpush("gpu.node:0", "x")
    assert "queues without a GPU" not in found(app)
    world.client.lpush("gpu.node:9", "x")
    assert (
        "gpu.node:9, the queue of a GPU that does not exist (any more), has 1 message"
        in found(app)["queues without a GPU"]
    )


def test_a_lease_without_a_ttl_is_found(app, world):
    world.join()
    world.client.set("gpu:lease:node:0", "me")
    assert "'me' has a lease of GPU node:0 without a TTL" in found(app)["leases without a TTL"]
    cure = "if it is gone, `gpulease release node:0 --force` takes it away; let it set a TTL"
    assert cure in examined(app)[1]
    assert "`gpulease release node:0 --force`" in next(foreign_keys(app.gpulease.ledger)).detail
    world.client.rename("gpu:lease:node:0", "gpu:want:node:0")
    assert "if it is gone, delete gpu:want:node:0;" in examined(app)[1]


def test_a_reconciler_that_is_silent_is_found_where_there_is_something_to_reconcile(app, world):
    world.client.hset("gpu:pulse", "reconciled_at", LONG_AGO)
    assert "there is nothing to reconcile" in examined(app)[1]
    assert "reconciler" not in found(app)
    world.join()
    assert "nobody has reconciled for" in found(app)["reconciler"]


def test_workers_of_another_version_are_named(app, world):
    world.join()
    assert "1: gpu@node" in found(app)["versions"]


@pytest.mark.filterwarnings(r"ignore:\s*The 'queue' task attribute is deprecated")
def test_a_gpu_task_that_names_a_queue_is_named(app):
    @app.task(base=GPUTask, name="proj.queued", shared=False, queue="big")
    def queued():
        pass

    assert "proj.queued (big)" in found(app)["queues of GPU tasks"]


def test_a_key_of_another_type_is_found(app, world):
    world.join()
    world.client.delete("gpu:deadlines")
    world.client.set("gpu:deadlines", "x")
    assert "gpu:deadlines is no zset any more" in found(app)["types of keys"]
    world.client.delete("gpu:deadlines")
    assert "types of keys" not in found(app)


def test_a_journal_that_is_dated_in_the_future_is_found_and_goes_on_when_it_is_deleted(app, world):
    world.client.xadd("gpu:journal", {"what": "hello"}, id="9999999999999999999-0")
    world.hold(ticket="one")
    assert "with a time of the future (3" in found(app)["journal"]
    for command in ("journal", "why"):
        arguments = (command, "task-1") if command == "why" else (command,)
        assert CliRunner().invoke(gpulease, arguments, obj=SimpleNamespace(app=app)).exit_code == 0
    world.client.delete("gpu:journal")
    world.hold(ticket="two")
    assert "journal" not in found(app)
