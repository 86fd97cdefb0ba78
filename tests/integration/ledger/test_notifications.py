"""The server's events are switched on without touching what others set, or it is said why not."""

import pytest

from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.notifications import FLAGS, eviction_trouble, switch_on
from celery_gpulease.settings import Settings


def ledger_of(server, **settings):
    return Ledger(Settings(redis_url=server.url, **settings))


def flags(ledger):
    return set(ledger.client.config_get(FLAGS)[FLAGS])


@pytest.mark.parametrize("before", ["", "El", "Kg", "x", "Egx", "K$"])
def test_what_is_missing_is_added_and_what_others_set_stays(own_server, before):
    ledger = ledger_of(own_server)
    ledger.client.config_set(FLAGS, before)
    assert switch_on(ledger) is None
    assert flags(ledger) >= set("Kgxe") | set(before) or flags(ledger) >= {"A", "K", *before} - set("gxe$lshztd")


@pytest.mark.parametrize("before", ["Kgxe", "KEA", "AK", "KEgxe$m"])
def test_nothing_is_written_where_nothing_is_missing(own_server, before):
    ledger = ledger_of(own_server)
    ledger.client.config_set(FLAGS, before)
    kept = ledger.client.config_get(FLAGS)
    ledger.client.execute_command("ACL", "SETUSER", "default", "-config", "+config|get")
    assert switch_on(ledger) is None
    assert ledger.client.config_get(FLAGS) == kept
    assert ledger.client.acl_log() == []


def test_off_leaves_the_flags_alone(own_server):
    ledger = ledger_of(own_server, notifications="off")
    assert switch_on(ledger) is None
    assert flags(ledger) == set()


@pytest.fixture
def refusing(server_binary):
    with EmbeddedServer("--rename-command", "CONFIG", "", binary=server_binary) as server:
        yield server


def test_where_the_server_refuses_the_trouble_names_the_flags_and_the_cure(refusing):
    trouble = switch_on(ledger_of(refusing))
    assert FLAGS in trouble
    assert "Kgxe" in trouble


def test_require_refuses_where_the_server_does(refusing):
    with pytest.raises(ConfigurationError, match="gpulease_notifications"):
        switch_on(ledger_of(refusing, notifications="require"))


def test_a_user_without_the_right_to_configure_is_told_so(own_server):
    admin = ledger_of(own_server).client
    admin.execute_command("ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", "-config")
    url = own_server.url.replace("redis://", "redis://u:p@")
    assert FLAGS in switch_on(Ledger(Settings(redis_url=url)))


def test_a_server_that_evicts_is_named(own_server):
    ledger = ledger_of(own_server)
    assert eviction_trouble(ledger) is None
    ledger.client.config_set("maxmemory-policy", "allkeys-lru")
    assert "noeviction" in eviction_trouble(ledger)
