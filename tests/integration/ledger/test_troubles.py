"""A server that cannot serve now is LedgerUnavailable, whatever it answers; a mistake of ours is not."""

from contextlib import nullcontext

import pytest
import redis

from celery_gpulease.embedded import EmbeddedServer, free_port
from celery_gpulease.exceptions import ConfigurationError, LedgerUnavailable
from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.connection import NotPermitted
from celery_gpulease.ledger.listening import Subscription
from celery_gpulease.settings import Settings
from tests.faults.world import SOON
from tests.rights import rights_in_readme
from tests.waiting import wait_until


@pytest.fixture
def redis_url(own_server):
    """Each of these spoils its server."""
    return own_server.url


@pytest.fixture
def run(world):
    """A job that runs when the trouble begins."""
    world.hold()
    worker = world.join()
    worker.claim()
    return worker.run()


def refuses(world, code):
    with pytest.raises(LedgerUnavailable, match=f"^the Redis that holds the leases .*{code}"):
        world.hold()


def skip_before_7(client):
    if int(client.info("server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("Redis 6 lets scripts write all the same")


def test_a_full_server_takes_nothing_new_and_what_runs_ends_well(world, run):
    world.age(left_ms=10_000)
    world.client.config_set("maxmemory-policy", "noeviction")
    world.client.config_set("maxmemory", "1")
    refuses(world, "OOM|maxmemory")
    assert world.ledger.renew(run) == "renewed"
    assert world.lease_ms() > 29_000
    assert world.ledger.release(run) == "released"
    assert (world.state(run.ticket), world.lease()) == ("ended", None)


def test_a_full_server_lets_a_worker_beat(world):
    world.hold()
    worker = world.join()
    worker.claim()
    run = worker.run()
    world.age(left_ms=10_000)
    world.client.config_set("maxmemory-policy", "noeviction")
    world.client.config_set("maxmemory", "1")
    refuses(world, "OOM|maxmemory")
    assert worker.beat(run) == "present"
    assert world.lease_ms() > 29_000


def test_a_full_server_lets_a_worker_leave(world):
    ticket, worker = world.hold(), world.join()
    worker.claim()
    worker.run()
    world.client.config_set("maxmemory-policy", "noeviction")
    world.client.config_set("maxmemory", "1")
    refuses(world, "OOM|maxmemory")
    worker.leave()
    assert (world.lease(), world.state(ticket), world.ticket(ticket)["deliveries"]) == (None, "pending", "0")


def test_a_replica(world, run):
    world.client.replicaof("127.0.0.1", free_port())
    refuses(world, "READONLY|read only")
    with pytest.raises(LedgerUnavailable, match="read only replica"):
        world.ledger.renew(run)
    assert world.ledger.is_reachable()
    world.client.replicaof("NO", "ONE")
    assert world.ledger.renew(run) == "renewed"


def test_a_master_without_enough_replicas(world):
    skip_before_7(world.client)
    world.client.config_set("min-replicas-to-write", 1)
    refuses(world, "NOREPLICAS")


def test_a_server_that_a_script_keeps_busy(world):
    world.client.config_set("lua-time-limit", 1)
    rude = redis.Redis.from_url(world.ledger.settings.redis_url).client()  # of one connection
    rude.connection.send_command("EVAL", "while true do end", 0)
    wait_until(lambda: not world.ledger.is_reachable(), 5, "the server to be busy")
    refuses(world, "BUSY")
    world.client.script_kill()
    wait_until(world.ledger.is_reachable, 5, "the server to serve again")
    rude.connection.disconnect()
    rude.close()
    world.hold()


@pytest.fixture
def unsaving(server_binary, tmp_path):
    """A server whose snapshots fail, and which then refuses to write."""
    folder = tmp_path / "gone"
    folder.mkdir()
    options = ("--dir", str(folder), "--save", "3600 1", "--stop-writes-on-bgsave-error", "yes")
    with EmbeddedServer(*options, binary=server_binary) as server, redis.Redis.from_url(server.url) as client:
        folder.rmdir()
        client.bgsave()
        wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", 5, "its snapshot to fail")
        yield server
        client.config_set("save", "")  # else it would not stop


def test_a_server_that_cannot_save(unsaving, world):
    skip_before_7(world.client)
    ledger = Ledger(Settings(redis_url=unsaving.url))
    with pytest.raises(LedgerUnavailable, match="MISCONF"):
        ledger.hold(world.held())
    assert ledger.agenda().lapsed == []
    ledger.client.close()


@pytest.mark.parametrize(
    ("missing", "lacks"), [("-zadd", "zadd|this command"), ("-evalsha", "evalsha"), ("resetkeys", "key")]
)
def test_a_right_that_the_server_refuses_is_told_with_its_cure(world, missing, lacks):
    world.client.execute_command("ACL", "SETUSER", "small", "on", ">p", "~*", "&*", "+@all", missing)
    options = {"username": "small", "password": "p"}
    ledger = Ledger(Settings(redis_url=world.ledger.settings.redis_url, redis_options=options))
    with pytest.raises(ConfigurationError, match=f"^our Redis user .*'Rights in Redis' in README.*({lacks})"):
        ledger.hold(world.held())
    ledger.client.close()
    world.client.flushdb()  # Lua is not rolled back


PATTERNS = [one for one in rights_in_readme()[0] if one[0] in "~&"]


@pytest.mark.parametrize("missing", [*PATTERNS, None])
def test_each_pattern_of_keys_and_channels_in_readme_is_needed(world, missing):
    rights = [one for one in rights_in_readme()[0] if one != missing]
    world.client.execute_command("ACL", "SETUSER", "small", "reset", "resetchannels", "on", ">p", *rights)
    options = {"username": "small", "password": "p"}
    ledger = Ledger(Settings(redis_url=world.ledger.settings.redis_url, redis_options=options))
    subscription = Subscription(ledger, "node:0")
    world.join().claim()
    with pytest.raises(NotPermitted) if missing else nullcontext():
        assert ledger.hold(world.held()) == "claimed"
        assert subscription.wait(SOON) == "subscribed"
    subscription.close()
    ledger.client.close()
    world.client.flushdb()  # Lua is not rolled back


@pytest.mark.parametrize("options", [{}, {"password": "wrong"}, {"username": "nobody", "password": "secret"}], ids=str)
def test_a_user_or_password_that_is_missing_or_wrong_is_said_to_be_so(own_server, world, options):
    with redis.Redis.from_url(own_server.url) as admin:
        admin.config_set("requirepass", "secret")
        ledger = Ledger(Settings(redis_url=own_server.url, redis_options=options))
        with pytest.raises(LedgerUnavailable, match=r"refuses us: user .*gpulease_redis_options") as refused:
            ledger.agenda()
        assert "does not answer" not in str(refused.value)
        admin.config_set("requirepass", "")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://127.0.0.1:1", {"pasword": "x"}),
        ("rediss://127.0.0.1:1", {"pasword": "x"}),
        ("redis://127.0.0.1:1?pasword=x", {}),
        ("sentinel://127.0.0.1:1", {"master_name": "m", "pasword": "x"}),
        ("sentinel://127.0.0.1:1", {"master_name": "m", "sentinel_kwargs": {"pasword": "x"}}),
    ],
)
def test_an_option_that_is_misspelt_is_named(url, options):
    with pytest.raises(ConfigurationError, match=r"^gpulease_redis_options.*no option 'pasword'$"):
        _ = Ledger(Settings(redis_url=url, redis_options=options)).client


def test_without_a_master_the_words_are_short():
    url = ";".join(f"sentinel://127.0.0.1:{free_port()}" for _ in range(2))
    ledger = Ledger(Settings(redis_url=url, redis_options={"master_name": "m", "sentinel_kwargs": {"password": "p"}}))
    with pytest.raises(LedgerUnavailable, match=r"no sentinel knows a living master$"):
        ledger.agenda()


def test_a_mistake_of_ours_is_raised_as_it_is(world):
    world.client.set(world.key("scheduled"), "no zset")
    try:
        with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
            world.ledger.promote()
    finally:
        world.client.delete(world.key("scheduled"))


def test_a_journal_that_somebody_has_filled_to_its_last_number_begins_anew(world):
    world.client.xadd("gpu:journal", {"what": "hello"}, id="18446744073709551615-18446744073709551615")
    world.hold(ticket="one")
    assert world.journal() == ["held"]
