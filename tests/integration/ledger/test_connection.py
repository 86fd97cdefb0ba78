"""Where the leases live."""

import pytest

from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.listening import Subscription, other_prefixes
from celery_gpulease.settings import Settings
from tests.faults.world import SOON
from tests.waiting import wait_until


def test_they_may_live_behind_a_socket_in_a_file(server_binary, tmp_path):
    socket = tmp_path / "redis.sock"
    with EmbeddedServer("--unixsocket", str(socket), binary=server_binary):
        ledger = Ledger(Settings(redis_url=f"unix://{socket}?db=2"))
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
