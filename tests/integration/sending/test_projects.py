"""Queues, routers and apps of a grown project: a GPU task goes to its pool, whatever else they say."""

import pickle
import warnings

import celery
import pytest
from celery import Celery, shared_task
from kombu import Exchange, Queue

from celery_gpulease import ConfigurationError, GPULease, GPURouter, GPUTask
from tests.integration.sending.test_holding import add_tasks, gpu_app

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

needs_no_default_queue = pytest.mark.skipif(
    celery.VERSION < (5, 7), reason="before 5.7 Celery itself sends nothing where there is no default queue"
)

IO = (Queue("io", Exchange("io"), routing_key="io"),)


def strict(name, *_, **__):
    """A router that knows every task of its project, and no other."""
    if not name.startswith("proj."):
        raise LookupError(name)


def nothing():
    """A task's body."""


@pytest.fixture
def pools(client):
    """In which pools' lines tasks wait."""
    return lambda: sorted(key.decode().removeprefix("gpu:pending:") for key in client.scan_iter("gpu:pending:*"))


@pytest.mark.parametrize("option", [{"pool": "a100"}, {"gpu": "node7:0"}])
def test_a_pool_or_gpu_for_a_task_without_gputask_is_refused_and_nothing_is_sent(redis_url, client, option):
    app = gpu_app(redis_url)
    plain = app.task(name="proj.plain", shared=False)(nothing)
    (name,) = option
    with pytest.raises(ConfigurationError, match=f"^{name}='.*proj.plain.*base=GPUTask"):
        plain.apply_async(**option)
    assert not client.keys("celery*")
    plain.apply_async(**dict.fromkeys(option))
    assert client.llen("celery") == 1


@needs_no_default_queue
def test_gpu_tasks_need_none_of_the_queues_that_a_project_has(redis_url, client, pools):
    app = gpu_app(redis_url, task_queues=IO, task_create_missing_queues=False, task_routes={"proj.total": "gone"})
    app.add.delay(1, 2)
    with pytest.warns(UserWarning, match="'nowhere' is ignored"):
        app.add.apply_async((1, 2), queue="nowhere")
    with pytest.warns(UserWarning, match="'gone' is ignored"):
        app.total.delay([1])
    assert client.zcard("gpu:pending:default") == 3
    assert list(app.amqp.queues) == ["io"]


def test_a_renamed_default_queue_is_no_reason_to_warn(redis_url, pools):
    app = gpu_app(redis_url, task_default_queue="everything")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.add.delay(1, 2)
        app.add.apply_async((1, 2), queue="everything")
    assert pools() == ["default"]


ROUTES = {
    "a dict": {"proj.*": {"queue": "io"}},
    "pairs": [("proj.*", {"queue": "io"})],
    "a function": lambda name, *_, **__: {"queue": "io"} if name == "other.thing" else None,
    "a queue": {"other.*": {"queue": IO[0]}},
}


@pytest.mark.filterwarnings("ignore:.*its queue 'io' is ignored")
@pytest.mark.parametrize("routes", ROUTES.values(), ids=ROUTES)
def test_routers_beside_ours_keep_their_say_over_other_tasks(redis_url, pools, routes):
    ours = GPURouter({"proj.*": "a100"})
    app = gpu_app(redis_url, task_queues=IO, task_default_queue="io", task_routes=(ours, routes))
    app.add.delay(1, 2)
    app.send_task("other.thing")
    assert pools() == ["a100"]
    with app.connection_for_read() as connection, connection.SimpleQueue(IO[0]) as queue:
        assert queue.get(timeout=5).headers["task"] == "other.thing"


def test_any_router_may_name_a_pool(redis_url, pools):
    app = gpu_app(redis_url, task_routes={"proj.*": {"pool": "a100", "priority": 3}})
    app.add.delay(1, 2)
    app.total.apply_async(([1],), pool="t4")
    assert pools() == ["a100", "t4"]


@needs_no_default_queue
def test_no_router_and_no_queue_must_know_the_reconciler(redis_url, client):
    app = gpu_app(redis_url, task_queues=IO, task_create_missing_queues=False, task_routes=strict)
    app.tasks["celery_gpulease.reconcile"].apply_async()
    assert client.exists("gpu:pulse")


def test_celerys_own_questions_about_a_gpu_tasks_queue_are_answered_by_the_default_queue(redis_url):
    app = gpu_app(redis_url, task_default_queue="everything", task_routes=(GPURouter({"proj.*": "a100"}), strict))
    assert app.amqp.router.route({}, "proj.add")["queue"].name == "everything"  # as for a chord's unlock


def test_a_warning_points_to_the_users_own_line(redis_url):
    app = gpu_app(redis_url)
    app.task(base=GPUTask, name="proj.warned", shared=False)(nothing)
    with pytest.warns(UserWarning, match="proj.warned is a GPU task") as caught:
        app.send_task("proj.warned", queue="fast")
    assert [one.filename for one in caught] == [__file__]


def test_several_apps_in_one_process_each_have_their_own_ledger(redis_url, client):
    one = gpu_app(redis_url)
    other = gpu_app(redis_url, gpulease_key_prefix="other:")
    one.add.delay(1, 2)
    other.add.delay(1, 2)
    other.add.delay(1, 2)
    assert (client.zcard("gpu:pending:default"), client.zcard("other:pending:default")) == (1, 2)


def test_a_shared_task_is_sent_by_the_app_that_is_current(redis_url, client):
    @shared_task(base=GPUTask, name="proj.shared")
    def shared():
        """Of every app."""

    one, other = gpu_app(redis_url), gpu_app(redis_url, gpulease_key_prefix="other:")
    bare = Celery("bare", broker=redis_url, set_as_current=False)
    one.tasks["proj.shared"].delay()
    other.tasks["proj.shared"].delay()
    with pytest.raises(ConfigurationError, match=r"GPULease\(app\)"):
        bare.tasks["proj.shared"].delay()
    assert (client.zcard("gpu:pending:default"), client.zcard("other:pending:default")) == (1, 1)


def test_a_sender_that_must_not_be_finalized_by_sending_is_not(redis_url, client, pools):
    app = Celery("elsewhere", broker=redis_url, backend=redis_url, set_as_current=False, autofinalize=False)
    GPULease(app)
    app.send_task("plain.thing")
    app.send_task("named.thing", pool="a100")
    assert not app.finalized
    assert (client.llen("celery"), pools()) == (1, ["a100"])


def test_an_app_can_be_pickled_as_before(redis_url):
    app = add_tasks(Celery("proj", broker=redis_url, set_as_current=False), None)
    GPULease(app)
    again = pickle.loads(pickle.dumps(app))
    assert again.main == "proj"
    assert again.amqp.router.route({}, "plain.thing")["queue"].name == "celery"


def test_a_transient_delivery_mode_is_a_number_in_the_message(redis_url, client):
    app = gpu_app(redis_url, task_default_delivery_mode="transient")
    app.add.delay(1, 2)
    (message,) = client.scan_iter("gpu:message:*")
    assert b'"delivery_mode": 1' in client.get(message)


def test_eager_tasks_need_no_redis():
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.update(task_always_eager=True)
    GPULease(app)
    add_tasks(app, GPUTask)
    assert app.add.apply_async((1, 2), pool="a100", queue="fast").get() == 3
    assert app.add.delay(1, 2).get() == app.add(1, 2) == app.add.apply((1, 2)).get() == 3
