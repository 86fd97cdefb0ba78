"""A group's tasks go out together; whatever breaks meanwhile, each is held once, or its sender is told."""

import gc
import os
import signal

import pytest
import redis
from celery import Celery, chain, group, signals
from celery.app.amqp import AMQP
from kombu.exceptions import EncodeError

from celery_gpulease import GPULease, GPUTask, LedgerUnavailable

# Celery's result backends leave their sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex"),
]

#: Fewer than are sent before their answers are read.
SOME = 100


def make_app(url, name="proj", **conf):
    app = Celery(name, broker=url, set_as_current=False)
    app.conf.update(task_publish_retry_policy={"max_retries": 3, "interval_start": 0}, **conf)
    GPULease(app)

    @app.task(base=GPUTask, name="proj.add", shared=False, ignore_result=True)
    def add(x, y):
        return x + y

    @app.task(name="proj.plain", shared=False, ignore_result=True)
    def plain():
        return 1

    app.add, app.plain = add, plain
    return app


@pytest.fixture(autouse=True)
def _results_go_before_their_server():
    """An AsyncResult that goes says so to its backend."""
    yield
    gc.collect()


@pytest.fixture
def app(redis_url):
    return make_app(redis_url, result_backend=redis_url)


def in_line(client, pool="default"):
    """The task ids that wait, in order."""
    tickets = client.zrange(f"gpu:pending:{pool}", 0, -1)
    return [client.hget(b"gpu:ticket:" + one, "task_id").decode() for one in tickets]


def ids(result):
    return [one.id for one in result.results]


def meanwhile(app, do_at):
    """Members of a group, of which some do something just before they are sent."""
    for number in range(SOME):
        do_at.get(number, lambda: None)()
        yield app.add.si(number, number)


def test_a_group_waits_for_redis_a_few_times_only(own_server):
    app = make_app(own_server.url)
    stop = {
        2: lambda: os.kill(own_server.pid, signal.SIGSTOP),
        SOME - 1: lambda: os.kill(own_server.pid, signal.SIGCONT),
    }
    sent = group(meanwhile(app, stop)).apply_async()
    with redis.Redis.from_url(own_server.url) as client:
        assert in_line(client) == ids(sent)


@pytest.mark.parametrize("size", [1, 2, 499, 500, 501, 502, 1001])
def test_a_group_of_any_size_is_held_once_and_in_its_order(app, client, size):
    sent = group(app.add.si(one, one) for one in range(size)).apply_async()
    assert in_line(client) == ids(sent)


def test_a_group_of_chains_groups_and_plain_tasks_is_held_in_its_order(app, client):
    chains = [chain(app.add.si(1, one), app.add.si(2, one)) for one in range(3)]
    members = [
        app.add.si(0, 0),
        *chains,
        app.plain.si(),
        group(app.add.si(3, one) for one in range(3)),
        app.add.si(4, 4),
    ]
    sent = group(members).apply_async()
    firsts = [one.parent.id if one.parent else one.id for one in sent.results]
    kept = [one for one in firsts if one != sent.results[4].id]
    assert sorted(in_line(client)) == sorted(kept)
    assert client.llen("celery") == 1


BREAKS = {
    "its connection is closed": lambda client: client.execute_command(
        "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"
    ),
    "scripts are forgotten": lambda client: client.script_flush(),
}


@pytest.mark.parametrize("name", BREAKS)
@pytest.mark.parametrize("at", [1, 2, SOME // 2, SOME - 1])
def test_whatever_breaks_meanwhile_each_is_held_once(app, client, name, at):
    sent = group(meanwhile(app, {at: lambda: BREAKS[name](client)})).apply_async()
    assert sorted(in_line(client)) == sorted(ids(sent))


@pytest.mark.parametrize("at", [1, SOME // 2, SOME - 1])
def test_a_redis_that_goes_meanwhile_is_told_and_the_next_group_goes_out(own_server, at):
    app = make_app(own_server.url)
    with pytest.raises(LedgerUnavailable):
        group(meanwhile(app, {at: own_server.stop})).apply_async(retry=False)
    own_server.start()
    sent = group(meanwhile(app, {})).apply_async()
    with redis.Redis.from_url(own_server.url) as client:
        assert in_line(client)[-SOME:] == ids(sent)


def test_what_was_sent_before_a_member_that_cannot_be_is_held(redis_url, client):
    app = make_app(redis_url)
    members = [app.add.si(one, one) for one in range(5)]
    with pytest.raises(EncodeError):
        group([*members, app.add.si(object(), 1), *members]).apply_async()
    assert len(in_line(client)) == 5


def test_members_that_were_revoked_before_are_not_given_out(app, client):
    members = [app.add.si(one, one).set(task_id=f"t{one}", ignore_result=False) for one in range(6)]
    app.control.revoke(["t0", "t3", "t5"])
    sent = group(members).apply_async()
    assert in_line(client) == ["t1", "t2", "t4"]
    assert [one.state for one in sent.results] == ["REVOKED", "PENDING", "PENDING", "REVOKED", "PENDING", "REVOKED"]


def test_within_a_producer_that_somebody_lends_all_are_held_before_it_is_given_back(app, client):
    with app.producer_pool.acquire(block=True) as producer:
        sent = group(app.add.si(one, one) for one in range(SOME)).apply_async(producer=producer)
        # Redis has each as soon as it was sent: whatever else this process asks comes after
        assert in_line(client) == ids(sent)


def test_a_groups_connection_is_given_back(redis_url, client):
    app = make_app(redis_url, gpulease_redis_options={"max_connections": 2})
    sent = [one for _ in range(5) for one in ids(group(meanwhile(app, {})).apply_async())]
    assert in_line(client) == sent


class Interrupted(BaseException):
    """As a signal's handler may raise: a soft time limit, say."""


def interrupt(*_):
    raise Interrupted


def test_the_answers_of_a_group_that_was_interrupted_are_nobody_elses(own_server):
    app = make_app(own_server.url)
    before = signal.signal(signal.SIGALRM, interrupt)

    def fall_silent():
        os.kill(own_server.pid, signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 2)  # long before Redis would be taken for away

    try:
        with pytest.raises(Interrupted):
            group(meanwhile(app, {2: fall_silent})).apply_async()
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
        signal.signal(signal.SIGALRM, before)
    client = app.gpulease.ledger.client
    assert [client.echo(str(one)) for one in range(5)] == ["0", "1", "2", "3", "4"]


def test_an_answer_is_never_taken_for_that_to_a_health_check(redis_url, client):
    app = make_app(redis_url, gpulease_redis_options={"health_check_interval": 0.01})
    pause = {10: lambda: client.client_pause(1500, all=False)}
    sent = group(meanwhile(app, pause)).apply_async()
    assert in_line(client) == ids(sent)


def test_a_users_own_pool_of_producers_stays(redis_url):
    class Own(AMQP):
        producer_pool = "theirs"

    app = Celery("proj", broker=redis_url, amqp=Own, set_as_current=False)
    GPULease(app)
    assert app.amqp.producer_pool == "theirs"


def test_two_apps_may_share_a_producer(redis_url, client):
    one, other = make_app(redis_url), make_app(redis_url, "other", gpulease_key_prefix="other:")
    members = [app.add.si(number, 0) for number in range(4) for app in (one, other)]
    group(members, app=one).apply_async()
    assert (client.zcard("gpu:pending:default"), client.zcard("other:pending:default")) == (4, 4)


def test_signals_and_results_are_as_celery_has_them(app, client):
    published = []

    def see(headers=None, **_):
        published.append(headers["id"])

    signals.after_task_publish.connect(see, weak=False)
    try:
        sent = group(app.add.si(one, one) for one in range(5)).apply_async()
    finally:
        signals.after_task_publish.disconnect(see)
    assert published == ids(sent) == in_line(client)
