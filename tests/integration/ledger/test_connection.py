"""Where the leases live."""

import pytest
import redis
from celery import Celery

from celery_gpulease import GPULease
from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.connection import connect
from celery_gpulease.ledger.listening import Subscription, other_prefixes
from celery_gpulease.settings import Settings
from tests.faults.world import SOON
from tests.waiting import wait_until


def test_they_may_live_behind_a_socket_in_a_file(server_binary, tmp_path):
    socket = tmp_path / "redis.sock"
    with EmbeddedServer("--unixsocket", str(socket), binary=server_binary):
        ledger = Ledger(Settings(redis_url=f"unix://{socket}?db=2"))
        if redis.__version__.startswith("4."):
            with pytest.raises(ConfigurationError, match=r"redis-py 5 or newer.*pip install -U redis"):
                ledger.is_reachable()
            return
        assert ledger.is_reachable()
        ledger.drain("node:0", drained=True)
        ledger.client.close()


@pytest.mark.parametrize("queue_prefix", ["", None], ids=["the broker", "another broker"])
def test_a_gpu_under_another_key_prefix_is_seen(redis_url, queue_prefix):
    one, other = (Ledger(Settings(redis_url=redis_url, key_prefix=prefix), queue_prefix) for prefix in ("a:", "b:"))
    subscription = Subscription(one, "node:0")
    wait_until(lambda: subscription.wait(0.1) == "subscribed", SOON, "the subscription")
    wait_until(lambda: other_prefixes(other, "node:0") == ["a:"], SOON, "the other prefix")
    assert other_prefixes(one, "node:0") == []
    assert other_prefixes(other, "node:1") == []
    subscription.close()
    for ledger in (one, other):
        ledger.client.close()


def test_a_listener_hears_of_its_own_keys_only_and_the_server_filters_all_others(redis_url):
    """However many keys of others vanish: exact channels, no pattern, so nothing of them is ever sent to it."""
    ledger = Ledger(Settings(redis_url=redis_url))
    ledger.client.config_set("notify-keyspace-events", "KEA")
    subscription = Subscription(ledger, "node:0")
    wait_until(lambda: subscription.wait(0.1) == "subscribed", SOON, "the subscription")
    assert ledger.client.pubsub_numpat() == 0
    assert set(ledger.client.pubsub_channels()) == {
        "__keyspace@0__:gpu:lease:node:0", "__keyspace@0__:gpu:want:node:0", "gpu:here:node:0", "gpu:queue:0:gpu.node:0"
    }  # fmt: skip
    names = ("other", "gpu:lease:node:1", "gpu:lease:node:00", "gpu:ticket:node:0", "lease:node:0")
    ledger.client.mset(dict.fromkeys((*names, "gpu:lease:node:0"), "x"))
    assert subscription.wait(0.1) is None
    ledger.client.delete(*names)
    assert subscription.wait(0.1) is None
    ledger.client.delete("gpu:lease:node:0")
    assert subscription.wait(SOON) == "lease"
    subscription.close()
    ledger.client.close()


def test_a_sentinels_first_url_names_user_password_and_database_as_in_kombu():
    url = "sentinel://user:p%40ss@127.0.0.1:1/3;sentinel://127.0.0.1:2"
    client = connect(url, {"master_name": "m", "sentinel_kwargs": {"password": "another"}, "ssl_ca_certs": "/ca.pem"})
    pool = client.connection_pool
    known = {name: pool.connection_kwargs[name] for name in ("username", "password", "db", "ssl_ca_certs")}
    assert known == {"username": "user", "password": "p@ss", "db": 3, "ssl_ca_certs": "/ca.pem"}
    assert issubclass(pool.connection_class, redis.SSLConnection)
    nodes = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"], one["password"]) for one in nodes] == [
        ("127.0.0.1", 1, "another"), ("127.0.0.1", 2, "another")
    ]  # fmt: skip


def test_a_sentinel_without_the_masters_name_is_refused_with_the_cure():
    with pytest.raises(ConfigurationError, match=r"master_name.*broker_transport_options"):
        connect("sentinel://127.0.0.1:1", {})


@pytest.mark.parametrize(("ours", "is_broker"), [(None, True), ("one", True), ("other", False)])
def test_sentinels_know_several_masters_and_only_one_of_them_is_the_broker(ours, is_broker):
    app = Celery("x", broker="sentinel://127.0.0.1:1/0", set_as_current=False)
    app.conf.broker_transport_options = {"master_name": "one"}
    app.conf.gpulease_redis_options = {"master_name": ours} if ours else {}
    assert GPULease(app).ledger.is_broker == is_broker
