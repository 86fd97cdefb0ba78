"""Every message of a GPU task, however it is sent, is held whole at the one place where Celery sends."""

import base64
import gc
import json
import time
import warnings
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery, Task, chain, chord, group, signals
from kombu.exceptions import OperationalError

from celery_gpulease import ConfigurationError, GPULease, GPURouter, GPUTask, LedgerUnavailable
from celery_gpulease.embedded import EmbeddedServer
from tests.waiting import wait_until

# Celery's result backends leave their sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

# What names one message and no other, or is ours.
OWN = ("id", "root_id", "origin")


def gpu_app(url, **conf):
    app = Celery("proj", broker=url, backend=url, set_as_current=False)
    app.conf.update(conf)
    GPULease(app)
    return add_tasks(app, GPUTask)


def add_tasks(app, base):
    @app.task(base=base, name="proj.add", bind=True, shared=False)
    def add(self, x, y):
        return x + y

    @app.task(base=base, name="proj.total", shared=False)
    def total(numbers):
        return sum(numbers)

    app.add, app.total = add, total
    return app


@pytest.fixture(autouse=True)
def _results_go_before_their_server():
    """An AsyncResult that goes says so to its backend."""
    yield
    gc.collect()


@pytest.fixture
def app(redis_url):
    return gpu_app(redis_url)


@pytest.fixture
def held(client):
    """The tickets that are held, in order of arrival, with their envelopes."""

    def look():
        found = []
        for key in client.scan_iter("gpu:ticket:*"):
            ticket = {name.decode(): value.decode() for name, value in client.hgetall(key).items()}
            text = client.get(key.replace(b":ticket:", b":message:"))
            assert text.count(b"\x01") == text.count(b"\x02") == 1
            ticket["envelope"] = json.loads(text.replace(b"\x01", b"QUEUE").replace(b"\x02", b'"CLAIM"'))
            found.append(ticket)
        return sorted(found, key=lambda one: float(one.get("score") or one["eta_ms"]))

    return look


SENDS = {
    "delay": lambda app: app.add.delay(1, 2),
    "apply_async": lambda app: app.add.apply_async((1, 2), countdown=0),
    "send_task": lambda app: app.send_task("proj.add", (1, 2)),
    "signature": lambda app: app.add.s(1, 2).apply_async(),
    "by name": lambda app: app.signature("proj.add", args=(1, 2)).apply_async(),
    "chain": lambda app: chain(app.add.s(1, 2), app.add.s(3)).apply_async(),
    "group": lambda app: group([app.add.s(1, 2)]).apply_async(),
    "chord": lambda app: chord([app.add.s(1, 2)])(app.total.s()),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_however_it_is_sent_it_is_held_and_no_queue_sees_it(app, client, held, send):
    send(app)
    (ticket,) = held()
    assert (ticket["task"], ticket["pool"], ticket["state"]) == ("proj.add", "default", "pending")
    assert client.llen("celery") == 0


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml", "msgpack"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_what_is_held_is_what_celery_would_have_sent(redis_url, client, held, serializer, compression):
    conf = {"accept_content": ["json", "pickle", "yaml", "msgpack"]}
    options = {
        "serializer": serializer, "compression": compression, "priority": 3, "headers": {"trace": "abc"},
        "expires": datetime(2099, 1, 1, tzinfo=timezone.utc), "task_id": "one", "reply_to": "me", "ignore_result": True,
    }  # fmt: skip
    call = ([1, {"n": [1, 2.5, None, "é\u2028"]}],)
    plain = add_tasks(Celery("proj", broker=redis_url, backend=redis_url, set_as_current=False), None)
    plain.conf.update(conf)
    if serializer == "json":  # Celery itself cannot send a signature by yaml
        options["link"] = plain.signature("proj.total")
    plain.add.apply_async(*call, **options)
    expected = json.loads(client.rpop("celery\x06\x163"))

    ours = gpu_app(redis_url, **conf)
    ours.add.apply_async(*call, **options)
    (ticket,) = held()
    found = ticket["envelope"]

    header = found["headers"].pop("gpulease")
    assert (header["claim"], header["pool"], header["pin"], header["eta"]) == ("CLAIM", "default", None, None)
    assert found["properties"]["delivery_info"].pop("routing_key") == "QUEUE"
    for envelope in (found, expected):
        envelope["properties"]["delivery_info"].pop("routing_key", None)
        del envelope["properties"]["delivery_tag"]
        envelope["properties"].pop("expiration", None)  # RabbitMQ's ttl in a queue: the ledger watches `expires`
        for name in OWN:
            envelope["headers"].pop(name, None)
    assert found == expected


def test_a_text_that_looks_like_our_holes_stays_as_it_is(app, held):
    app.add.delay("\x01\x02-queue-claim", "\u0001")
    (ticket,) = held()
    body = json.loads(base64.b64decode(ticket["envelope"]["body"]))
    assert body[0] == ["\x01\x02-queue-claim", "\u0001"]


def test_pool_gpu_and_priority_say_where_and_when(app, held):
    app.add.apply_async((1, 1), pool="a100", priority=2)
    app.add.apply_async((2, 2), gpu="node7:0")
    first, second = sorted(held(), key=lambda one: one["pin"])
    assert (first["pool"], first["pin"], first["priority"]) == ("a100", "", "2")
    assert (second["pool"], second["pin"], second["priority"]) == ("default", "node7:0", "0")
    assert second["envelope"]["headers"]["gpulease"]["pin"] == "node7:0"
    assert "pool" not in first["envelope"]["properties"]


@pytest.mark.parametrize(
    "options",
    [{"pool": "no pool"}, {"pool": ""}, {"gpu": "a b"}, {"gpu": 0}, {"priority": 256}, {"priority": "high"}],
)
def test_what_makes_no_sense_is_refused_by_name_and_nothing_is_held(app, held, options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        app.add.apply_async((1, 2), **options)
    assert held() == []


def test_a_declared_pool_that_is_none_is_told_with_its_task(app):
    @app.task(base=GPUTask, name="proj.wrong", pool="a b", shared=False)
    def wrong():
        raise NotImplementedError

    with pytest.raises(ConfigurationError, match=r"^task proj\.wrong: pool 'a b'"):
        app.add.delay(1, 2)


def test_countdown_and_eta_wait_in_the_ledger_and_the_task_still_sees_its_eta(app, client, held):
    before = time.time()
    app.add.apply_async((1, 1), countdown=60)
    eta = datetime(2098, 5, 4, 3, 2, 1, tzinfo=timezone(timedelta(hours=2)))
    app.add.apply_async((2, 2), eta=eta)
    soon, late = held()
    assert soon["state"] == late["state"] == "scheduled"
    assert before + 60 <= int(soon["eta_ms"]) / 1000 + 0.002 <= time.time() + 60
    assert int(late["eta_ms"]) == eta.timestamp() * 1000
    assert late["envelope"]["headers"]["eta"] is None
    assert datetime.fromisoformat(late["envelope"]["headers"]["gpulease"]["eta"]) == eta
    assert client.hgetall("gpu:scheduled_count") == {b"default": b"2"}


def test_a_naive_eta_means_utc_as_a_worker_of_celerys_reads_it(redis_url, held):
    app = gpu_app(redis_url, timezone="Asia/Tokyo")
    app.add.apply_async((1, 1), eta=datetime(2098, 1, 1, 9, 0))  # noqa: DTZ001
    (ticket,) = held()
    assert int(ticket["eta_ms"]) == datetime(2098, 1, 1, 9, 0, tzinfo=timezone.utc).timestamp() * 1000


def test_expires_is_known_to_the_ledger(app, held):
    app.add.apply_async((1, 1), expires=100)
    (ticket,) = held()
    assert 0 < int(ticket["expires_ms"]) - time.time() * 1000 <= 100_000


def test_a_queue_that_is_named_is_ignored_with_one_warning_that_names_pool(app, client, held):
    with pytest.warns(UserWarning, match="pool="):
        app.add.apply_async((1, 1), queue="fast")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.add.apply_async((2, 2), queue="fast")
    assert len(held()) == 2
    assert client.llen("fast") == 0


def test_a_senders_pool_beats_the_router_and_the_router_beats_the_class(redis_url, held):
    app = gpu_app(redis_url, task_routes=(GPURouter({"proj.*": "routed"}),))
    app.add.delay(1, 1)
    app.add.apply_async((2, 2), pool="asked")
    assert {ticket["pool"] for ticket in held()} == {"routed", "asked"}


def test_a_sender_that_knows_only_names_holds_what_the_router_names(redis_url, client, held):
    app = Celery("elsewhere", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.task_routes = (GPURouter({"proj.*": "a100"}), {"other.*": {"queue": "others"}})
    GPULease(app)
    app.send_task("proj.add", (1, 2))
    app.send_task("other.thing")
    app.send_task("plain.thing")
    app.send_task("named.thing", pool="t4")
    assert {(ticket["task"], ticket["pool"]) for ticket in held()} == {("proj.add", "a100"), ("named.thing", "t4")}
    assert (client.llen("others"), client.llen("celery")) == (1, 1)


def test_signals_and_events_of_sending_are_celerys(app, client):
    seen = []

    def note(sender=None, **fields):
        seen.append((sender, fields.get("headers", {}).get("id"), fields.get("routing_key")))

    signals.before_task_publish.connect(note)
    signals.after_task_publish.connect(note)
    app.conf.task_send_sent_event = True
    events = client.pubsub(ignore_subscribe_messages=True)
    events.psubscribe("*celeryev*")
    events.get_message(timeout=20)
    try:
        result = app.add.delay(1, 2)
    finally:
        signals.before_task_publish.disconnect(note)
        signals.after_task_publish.disconnect(note)
    assert seen == [("proj.add", result.id, "gpu.pool.default")] * 2
    told = [wait_until(lambda: events.get_message(timeout=1), 20, "the event") for _ in range(2)]
    held, sent = [json.loads(base64.b64decode(json.loads(message["data"])["body"])) for message in told]
    assert (held["type"], held["uuid"], held["pool"]) == ("task-held", result.id, "default")
    assert (sent["type"], sent["uuid"], sent["queue"]) == ("task-sent", result.id, "gpu.pool.default")
    events.close()


def test_an_event_of_sending_that_cannot_be_sent_is_kept_as_celery_keeps_it(app, held):
    class Cut(app.amqp.Producer):
        def publish(self, body, **options):
            raise OSError("cut off")

    app.conf.task_send_sent_event = True
    with app.connection_for_write() as connection:
        sent = app.send_task("proj.add", (1, 2), producer=Cut(connection))
    kept = app.amqp._event_dispatcher._outbound_buffer
    assert [(event["type"], event["uuid"]) for event, *_ in kept] == [("task-sent", sent.id)]
    assert len(held()) == 1


def test_without_redis_delay_raises_ledger_unavailable_after_the_retries():
    with EmbeddedServer() as server:
        url = server.url
    app = gpu_app(url, task_publish_retry_policy={"max_retries": 2, "interval_start": 0, "interval_step": 0.01})
    with pytest.raises(LedgerUnavailable) as caught:
        app.add.apply_async((1, 2), ignore_result=True)
    assert isinstance(caught.value, OperationalError)


def test_without_redis_the_error_says_that_nothing_was_held_and_the_same_process_sends_again(own_server):
    app = gpu_app(own_server.url, result_backend_transport_options={"retry_policy": {"max_retries": 0}})
    own_server.stop()
    for _ in range(2):
        with pytest.raises(LedgerUnavailable, match=r"\(gpulease_redis_url\) does not answer.*not held.*Send it again"):
            app.add.delay(1, 2)
    own_server.start()
    app.add.delay(1, 2)
    assert GPULease(app).ledger.client.zcard("gpu:pending:default") == 1


def test_a_policy_that_names_only_a_part_is_celerys_own_with_that_part(redis_url, held):
    gpu_app(redis_url, task_publish_retry_policy={"interval_max": 1}).add.apply_async((1, 2), ignore_result=True)
    assert len(held()) == 1


def test_a_send_survives_a_restart_of_redis_within_its_retries(own_server):
    app = gpu_app(own_server.url)
    app.add.apply_async((1, 2), ignore_result=True)
    own_server.restart()  # its client's connection is dead now
    app.add.apply_async((1, 2), ignore_result=True)


def test_a_gpu_task_of_an_app_without_gpulease_is_refused(redis_url, client):
    app = add_tasks(Celery("bare", broker=redis_url, set_as_current=False), GPUTask)
    with pytest.raises(ConfigurationError, match=r"GPULease\(app\)"):
        app.add.delay(1, 2)
    assert client.dbsize() == 0


@pytest.mark.parametrize(
    ("broker", "highest_first"),
    [
        ("redis://127.0.0.1:1/5", False),
        ("amqp://127.0.0.1:1//", True),
        ("memory://", True),
        ("another", False),
    ],
)
def test_a_send_needs_no_broker_but_the_ledger(redis_url, held, broker, highest_first):
    broker = redis_url.removesuffix("0") + "5" if broker == "another" else broker
    app = gpu_app(redis_url, broker_url=broker, gpulease_redis_url=redis_url)
    app.add.apply_async((1, 2), priority=9, ignore_result=True)
    assert int(held()[0]["priority"]) == (246 if highest_first else 9)
    assert GPULease(app).ledger.route_to("node:0") == "gpu:routed:node:0"


def test_a_broker_that_may_fail_over_to_another_is_not_the_ledger(redis_url):
    assert GPULease(gpu_app(f"{redis_url};redis://127.0.0.1:1")).ledger.route_to("node:0") == "gpu:routed:node:0"


def test_without_its_redis_a_send_says_so_whatever_the_broker():
    app = gpu_app("redis://127.0.0.1:1/0", broker_url="memory://")
    with pytest.raises(LedgerUnavailable):
        app.add.apply_async((1, 2), ignore_result=True, retry=False)


def test_installing_twice_does_no_harm_and_an_amqp_that_was_cached_is_dropped(redis_url, held):
    app = Celery("proj", broker=redis_url, set_as_current=False)
    assert app.amqp.send_task_message
    GPULease(app)
    GPULease(app)
    add_tasks(app, GPUTask)
    app.add.apply_async((1, 2), ignore_result=True)
    assert len(held()) == 1


def test_a_kombu_key_prefix_is_kept(redis_url, client):
    app = gpu_app(redis_url, broker_transport_options={"global_keyprefix": "site:"})
    assert GPULease(app).ledger.route_to("node:0") == "site:gpu.node:0"


def test_purge_of_the_broker_leaves_held_tasks(app, held):
    app.add.delay(1, 2)
    app.control.purge()
    assert len(held()) == 1


NOBODY = "redis://127.0.0.1:1"
SOON = {"max_retries": 1, "interval_start": 0}


@pytest.mark.parametrize("conf", [{}, {"gpulease_lease_ttl": -1}], ids=["all is well", "a setting is wrong"])
def test_a_map_of_plain_tasks_fails_as_in_celery(conf):
    app = Celery("proj", broker=NOBODY, broker_transport_options=SOON, set_as_current=False)
    app.conf.update(conf)
    GPULease(app)
    add_tasks(app, Task)
    with pytest.raises(OperationalError) as caught:
        app.total.map([[1], [2]]).apply_async(retry=False)
    assert not isinstance(caught.value, LedgerUnavailable)


def test_a_map_of_gpu_tasks_fails_in_the_ledgers_words():
    app = gpu_app(NOBODY, result_backend_transport_options={"retry_policy": {"max_retries": 0}})
    for signature in (app.total.map([[1]]), app.total.chunks([([1],)], 1).group().tasks[0]):
        with pytest.raises(LedgerUnavailable):
            signature.apply_async(retry=False)


def test_the_headers_of_a_run_make_no_gpu_task_of_another_and_give_it_no_place(redis_url, held, client):
    app = gpu_app(redis_url)

    @app.task(name="proj.plain", shared=False)
    def plain():
        return None

    app.add.apply_async((1, 2), gpu="node7:0", ignore_result=True)
    headers = {"trace": "x", "gpulease": held()[0]["envelope"]["headers"]["gpulease"]}
    plain.apply_async(headers=headers, ignore_result=True)
    app.total.apply_async(([1],), headers=headers, pool="a100", ignore_result=True)
    app.total.apply_async(([1],), headers=headers, ignore_result=True)
    assert [(one["task"], one["pool"], one["pin"]) for one in held()] == [
        ("proj.add", "default", "node7:0"), ("proj.total", "a100", ""), ("proj.total", "default", "")
    ]  # fmt: skip
    assert client.llen("celery") == 1
