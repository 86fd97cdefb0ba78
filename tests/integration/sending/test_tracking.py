"""`gpulease_track_held`: what a held task's state is, and what HELD leaves alone."""

import logging

import pytest
from celery import Celery, states

from celery_gpulease import GPULease, GPUTask

# Celery's result backends leave their sockets to the garbage collector, and use what redis-py deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


def app_on(url, backend=None, **conf):
    app = Celery("proj", broker=url, backend=backend or url, set_as_current=False)
    app.conf.update({"gpulease_track_held": True, **conf})
    GPULease(app)

    @app.task(base=GPUTask, name="proj.add", shared=False)
    def add(x, y):
        return x + y

    @app.task(base=GPUTask, name="proj.silent", shared=False, ignore_result=True)
    def silent():
        return

    return app


@pytest.fixture
def app(redis_url):
    app = app_on(redis_url)
    yield app
    app.close()


def state_of(result):
    return result.state, result.info


def test_a_held_task_is_held_with_pool_and_position(app):
    add = app.tasks["proj.add"]
    first, second = add.delay(1, 2), add.delay(1, 2)
    other = add.apply_async((1, 2), pool="a100")
    assert state_of(first) == ("HELD", {"pool": "default", "position": 1})
    assert state_of(second) == ("HELD", {"pool": "default", "position": 2})
    assert state_of(other) == ("HELD", {"pool": "a100", "position": 1})
    assert not first.ready()


def test_the_position_is_that_within_the_line_when_it_was_held(app):
    add = app.tasks["proj.add"]
    last = add.apply_async((1, 2), priority=9)
    first = add.apply_async((1, 2), priority=0)
    pinned = add.apply_async((1, 2), gpu="node7:0")
    assert state_of(first) == ("HELD", {"pool": "default", "position": 1})
    assert state_of(last) == ("HELD", {"pool": "default", "position": 1}), "it was the first when it came"
    assert state_of(pinned) == ("HELD", {"pool": "default", "position": 1})


def test_the_position_counts_as_the_broker_counts(redis_url):
    app = app_on("memory://", redis_url)
    add = app.tasks["proj.add"]
    middle, first, last = (add.apply_async((1, 2), priority=priority) for priority in (5, 9, 0))
    assert [state_of(one)[1]["position"] for one in (middle, first, last)] == [1, 1, 3]
    app.close()


def test_what_is_not_due_yet_has_no_position(app):
    assert state_of(app.tasks["proj.add"].apply_async((1, 2), countdown=60)) == (
        "HELD",
        {"pool": "default", "position": None},
    )


def test_it_is_off_by_default(redis_url):
    app = app_on(redis_url, gpulease_track_held=False)
    assert app.tasks["proj.add"].delay(1, 2).state == "PENDING"
    app.close()


def test_a_sender_that_knows_only_the_name_says_held_too(redis_url):
    app = Celery("by name", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.gpulease_track_held = True
    GPULease(app)
    assert app.send_task("proj.add", (1, 2), pool="default").state == "HELD"
    app.close()


def test_an_app_that_must_not_be_finalized_says_held_and_revoked_too(redis_url):
    app = Celery("by name", broker=redis_url, backend=redis_url, set_as_current=False, autofinalize=False)
    app.conf.gpulease_track_held = True
    GPULease(app)
    result = app.send_task("proj.add", (1, 2), pool="default")
    assert result.state == "HELD"
    app.control.revoke(result.id)
    assert app.backend.get_task_meta(result.id, cache=False)["status"] == "REVOKED"
    assert not app.finalized
    app.close()


def test_a_task_that_ignores_its_result_has_no_state(app):
    assert app.tasks["proj.silent"].delay().state == "PENDING"
    assert app.tasks["proj.add"].apply_async((1, 2), ignore_result=True).state == "PENDING"


@pytest.mark.parametrize("backend", ["disabled://", "rpc://"])
def test_without_a_backend_that_keeps_states_it_is_held_all_the_same(redis_url, backend):
    app = app_on(redis_url, backend)
    app.tasks["proj.add"].delay(1, 2)
    assert len(list(app.gpulease.ledger.client.scan_iter("gpu:ticket:*"))) == 1
    app.close()


@pytest.mark.parametrize("state", [states.STARTED, states.SUCCESS, states.FAILURE, states.RETRY, states.REVOKED])
def test_held_never_overwrites_a_later_state(app, state):
    result = KeyError("no") if state in states.EXCEPTION_STATES else 3
    app.backend.store_result("known", result, state)
    app.tasks["proj.add"].apply_async((1, 2), task_id="known")
    assert app.AsyncResult("known").state == state


def test_a_retry_stays_retry_while_it_is_held(app):
    add = app.tasks["proj.add"]
    app.backend.store_result("known", ValueError("no"), states.RETRY)
    add.apply_async((1, 2), task_id="known", retries=1)
    assert app.AsyncResult("known").state == "RETRY"


def test_held_is_stored_before_any_worker_can_have_the_task(app, client):
    add = app.tasks["proj.add"]
    add.delay(1, 2)
    with client.monitor() as seen:
        task = add.delay(1, 2).id
        words = []
        for one in seen.listen():
            words.append(one["command"])
            if one["command"].startswith("EVALSHA") and task in one["command"]:
                break
    assert any(word.startswith(f"SETEX celery-task-meta-{task}") for word in words)


def test_a_backend_that_fails_keeps_no_task_from_being_held(app, caplog, monkeypatch):
    def fail(*args, **options):
        raise OSError("the backend is away")

    monkeypatch.setattr(app.backend, "get_task_meta", fail)
    with caplog.at_level(logging.ERROR):
        task = app.tasks["proj.add"].delay(1, 2).id
    assert app.gpulease.ledger.client.exists(f"gpu:task:{task}")
    assert task in caplog.text
    assert "cannot be stored" in caplog.text


def test_a_cancelled_task_is_revoked_and_not_held(app):
    from celery_gpulease.dispatch.revoking import cancel  # noqa: PLC0415

    result = app.tasks["proj.add"].delay(1, 2)
    cancel(app, app.gpulease.ledger, [result.id])
    assert result.state == "REVOKED"
