"""Celery's control commands where something is wrong with them, or with the ledger: they go their way."""

import logging

import pytest
from celery import Celery

from celery_gpulease import GPULease, GPUTask
from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.worker.commands import Revoker

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
