"""Celery's control commands where something is wrong with them, or with the ledger: they go their way."""

import gc
import logging
import os
import threading

import pytest
from celery import Celery

from celery_gpulease import GPULease, GPUTask, forks
from celery_gpulease.dispatch.ending import EndWriter, write_ends
from celery_gpulease.dispatch.revoking import see_to
from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.reconcile import beat
from celery_gpulease.worker.commands import Revoker
from tests.waiting import wait_until

# Celery's result backends leave their sockets to the garbage collector, and call what redis-py calls old.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex"),
]

WRONG = {
    "a stamp without a value": ("revoke_by_stamped_headers", {"headers": ["foo"]}),
    "no stamps": ("revoke_by_stamped_headers", {}),
    "no task": ("revoke", {}),
}


def app_on(url, **conf):
    made = Celery("proj", broker=url, backend=url, set_as_current=False)
    made.conf.update(conf)
    GPULease(made)

    @made.task(base=GPUTask, name="proj.render", shared=False)
    def render():
        pass

    return made


@pytest.fixture(autouse=True)
def _results_go_before_their_server():
    """An AsyncResult that goes says so to its backend."""
    yield
    gc.collect()


@pytest.fixture
def app(redis_url):
    with app_on(redis_url) as made:
        yield made


@pytest.fixture
def forbidden(redis_url, client):
    """An app whose Redis lets it do nothing."""
    client.acl_setuser("nobody", enabled=True, passwords=["+secret"], commands=["+ping"], reset=True)
    with app_on(redis_url, gpulease_redis_url=redis_url.replace("redis://", "redis://nobody:secret@")) as made:
        yield made
    client.acl_deluser("nobody")


def sent(client):
    """Did a command go out to Celery's workers?"""
    pubsub = client.pubsub()
    pubsub.psubscribe("*.celery.pidbox")
    pubsub.get_message(timeout=5)
    return lambda: pubsub.get_message(timeout=5)["type"] == "pmessage" and not pubsub.close()


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_revoke_goes_out_as_in_celery_and_the_ledgers_trouble_is_said(app, client, caplog, wrong):
    command, arguments = WRONG[wrong]
    is_sent = sent(client)
    app.control.broadcast(command, arguments=arguments)
    assert is_sent()
    assert f"{command}: what is held for GPUs is not taken back" in caplog.text


def test_a_revoke_goes_out_where_redis_forbids_us_everything(forbidden, client, caplog):
    is_sent = sent(client)
    forbidden.control.revoke("one")
    assert is_sent()
    assert "revoke: what is held for GPUs is not taken back: " in caplog.text


def test_a_purge_is_done_where_redis_forbids_us_everything(forbidden, caplog):
    assert forbidden.control.purge() == 0
    assert "they cannot be counted" in caplog.text


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_revoke_keeps_no_worker_from_the_next(app, caplog, wrong):
    task, revoker = app.tasks["proj.render"].delay(), Revoker(app)
    revoker.obey(*WRONG[wrong])
    revoker.obey("revoke", {"task_id": task.id})
    revoker.turn()
    assert task.state == "REVOKED"
    assert f"{WRONG[wrong][0]}: what is held for GPUs is not taken back: {WRONG[wrong][1]}" in caplog.text


def test_where_redis_is_away_a_worker_obeys_later_in_the_same_order(own_server, caplog):
    with caplog.at_level(logging.ERROR), app_on(own_server.url) as app:
        task, revoker = app.tasks["proj.render"].delay(), Revoker(app)
        revoker.obey("revoke", {"task_id": task.id})
        own_server.stop()
        with pytest.raises(LedgerUnavailable):
            revoker.turn()
        assert len(revoker._orders) == 1
    assert caplog.text == ""


@pytest.fixture
def stranger(app):
    """A task that was cancelled, and whose end nobody has written yet."""
    result = app.tasks["proj.render"].delay()
    app.gpulease.ledger.cancel(result.id)
    return result


def test_who_revokes_where_no_worker_lives_writes_only_the_ends_of_what_it_revokes(app, stranger):
    held = app.tasks["proj.render"].delay()
    held.revoke()
    app.control.revoke("before it is sent")
    sent = app.tasks["proj.render"].apply_async(task_id="before it is sent")
    assert (held.state, sent.state, stranger.state) == ("REVOKED", "REVOKED", "PENDING")
    write_ends(app, app.gpulease.ledger)
    assert stranger.state == "REVOKED"


def test_an_end_that_another_writes_is_left_to_it(app, stranger):
    ledger = app.gpulease.ledger
    assert ledger.end().task_id == stranger.id
    stranger.revoke()
    assert ledger.client.exists(f"gpu:task:{stranger.id}")


def test_a_tick_of_beat_writes_ends_for_a_while_only(app, monkeypatch):
    monkeypatch.setattr(beat, "WRITING", 0)
    results = [app.tasks["proj.render"].delay() for _ in range(3)]
    for one in results:
        app.gpulease.ledger.cancel(one.id)
    for number in (1, 2, 3):
        beat.reconcile_now(app)
        assert [one.state for one in results].count("REVOKED") == number


def test_where_the_backend_is_away_one_end_tells_why_and_the_others_are_counted(app, monkeypatch, caplog):
    ledger = app.gpulease.ledger
    for one in [app.tasks["proj.render"].delay() for _ in range(5)]:
        ledger.cancel(one.id)

    def away(*_, **__):
        raise OSError("away")

    with monkeypatch.context() as broken:
        broken.setattr(app.backend, "mark_as_revoked", away)
        write_ends(app, ledger)
    assert [one.exc_info is not None for one in caplog.records] == [True, False]
    assert "The ends of 4 more tasks" in caplog.messages[-1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python 3.12 says so of any
def test_a_fork_need_not_wait_until_all_ends_are_written(app, monkeypatch):
    for one in [app.tasks["proj.render"].delay() for _ in range(2)]:
        app.gpulease.ledger.cancel(one.id)
    waiting_forks, is_inside, go = [], threading.Event(), threading.Event()
    backend = type(app.backend)  # each thread has one of its own
    mark_as_revoked = backend.mark_as_revoked

    def slowly(*args, **options):
        waiting_forks.append(forks._forks)
        is_inside.set()
        go.wait()
        mark_as_revoked(*args, **options)

    def fork_once():
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    monkeypatch.setattr(backend, "mark_as_revoked", slowly)
    writer, forking = EndWriter(app, app.gpulease.ledger), threading.Thread(target=fork_once)
    writer.start()
    is_inside.wait()
    forking.start()
    wait_until(lambda: forks._forks, 1, "the fork")
    go.set()
    forking.join()
    wait_until(lambda: len(waiting_forks) == 2, 10, "the second end")
    writer.stop()
    writer.join()
    assert waiting_forks == [0, 0]


@pytest.mark.parametrize("when", ["when it is told", "before it is told"])
def test_what_a_worker_stores_of_a_revoke_is_not_overwritten_with_less(app, monkeypatch, when):
    app.conf.result_extended = True
    ledger, result = app.gpulease.ledger, app.tasks["proj.render"].delay()
    taken = ledger.cancel(result.id).taken
    if when == "before it is told":
        write_ends(app, ledger)
    monkeypatch.setattr(ledger, "wake", lambda what: write_ends(app, ledger) or True)
    assert see_to(app, ledger, taken) is None
    stored = app.backend.get_task_meta(result.id, cache=False)
    assert (stored["status"], stored.get("name")) == ("REVOKED", "proj.render")


def test_of_the_workers_that_hear_a_stamped_revoke_one_looks_at_all_tickets(app, client):
    client.config_resetstat()
    hosts, revokers = ["one", "two", "three"], [Revoker(app) for _ in range(3)]
    order = ("revoke_by_stamped_headers", {"headers": {"customer": "acme"}})
    for host, revoker in zip(hosts, revokers, strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("celery_gpulease.dispatch.revoking.gethostname", lambda host=host: host)
            revoker.obey(*order)
            revoker.turn()
    assert client.info("commandstats")["cmdstat_scan"]["calls"] == 1
    assert client.zcard("gpu:revoked_stamps") == 1
