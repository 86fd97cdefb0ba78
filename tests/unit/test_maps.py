"""map and starmap take the road of the task that they call."""

import pytest
from celery import Celery, signature

from celery_gpulease import GPULease, GPURouter, GPUTask
from celery_gpulease.sending.maps import MAPS, called_by, road_of
from celery_gpulease.sending.task import LeasedTask

URL = "redis://localhost:6379/0"


def app_of(**options):
    return Celery("maps", broker=URL, set_as_current=False, **options)


def test_the_road_of_a_map_is_first_that_of_the_task_that_it_calls():
    inner = {"task": "render", "args": [], "kwargs": {}}
    assert road_of("celery.starmap", [], {"task": inner, "it": []}) == ("render", "celery.starmap")
    assert road_of("celery.map", [signature("render"), []], {}) == ("render", "celery.map")
    assert road_of("celery.group", [inner], {}) == ("celery.group",)


@pytest.mark.parametrize("kwargs", [{}, {"task": None}, {"task": "render"}, {"task": {}}])
def test_a_map_that_names_no_task_has_its_own_road(kwargs):
    assert called_by("celery.map", [], kwargs) is None


@pytest.mark.parametrize("is_finalized", [False, True])
def test_an_apps_maps_may_be_leased_whenever_it_is_installed(is_finalized):
    app = app_of()
    if is_finalized:
        app.finalize()
    GPULease(app)
    for name in MAPS:
        assert isinstance(app.tasks[name], LeasedTask)
        assert not isinstance(app.tasks[name], GPUTask)
        assert app.tasks[name].app is app
        assert app.tasks[name].name == name


def test_an_app_whose_task_class_is_gpu_task_keeps_its_maps():
    app = app_of(task_cls=GPUTask)
    GPULease(app)
    assert isinstance(app.tasks["celery.map"], GPUTask)


def test_a_map_still_maps():
    app = app_of()
    GPULease(app)

    @app.task(base=GPUTask, shared=False)
    def double(x):
        return 2 * x

    assert double.map([1, 2]).apply().get() == [2, 4]


class TestRouter:
    router = GPURouter({"render": "a100"})

    @pytest.mark.parametrize("name", ["render", "celery.map", {"task": "render"}])
    def test_a_map_goes_where_its_calls_go(self, name):
        app = app_of()
        GPULease(app)
        task = None if name == "celery.map" else app.tasks["celery.map"]
        assert self.router(name, (), {"task": {"task": "render"}, "it": []}, {}, task=task) == {"gpulease_pool": "a100"}

    def test_a_map_of_a_registered_plain_task_is_left_to_the_other_routers(self):
        app = app_of()
        GPULease(app)

        @app.task(name="render", shared=False)
        def plain(x):
            pass

        assert self.router("render", (), {"task": plain.s(), "it": []}, {}, task=app.tasks["celery.map"]) is None
