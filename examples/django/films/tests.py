"""What a project tests of its GPU tasks. The fixtures that begin with `gpu_` are those of celery_gpulease."""

import pytest
from django.db import transaction

from celery_gpulease import LeaseLost
from films.models import Film
from films.tasks import render

pytestmark = pytest.mark.django_db(transaction=True)  # a worker sees what is committed


def test_a_film_that_is_ordered_is_rendered(client, gpu_worker):
    assert client.post("/films/", {"scene": "a.blend"}).content == b"a.blend: waits\n"
    gpu_worker.wait_until_idle()
    assert client.get("/films/").content == b"a.blend: rendered on testhost:0\n"


def test_what_is_rolled_back_is_not_sent(gpu_ledger):
    with transaction.atomic():
        render.delay_on_commit(Film.objects.create(scene="a.blend").pk)
        transaction.set_rollback(True)
    assert gpu_ledger.pending() == []


def test_an_order_waits_while_there_is_no_gpu(client, gpu_ledger):
    client.post("/films/", {"scene": "a.blend"})
    assert [(row["task"], row["pool"]) for row in gpu_ledger.pending()] == [("films.tasks.render", "default")]


def test_a_film_whose_gpu_goes_to_another_is_not_rendered(gpu_worker):
    film = Film.objects.create(scene="long.blend", frames=1000)
    result = render.delay(film.pk)
    gpu_worker.expire_lease()
    with pytest.raises(LeaseLost):
        result.get(timeout=10)
    film.refresh_from_db()
    assert film.gpu == ""


def test_a_run_does_not_write_over_a_later_one(gpu_stand_in):
    film = Film.objects.create(scene="a.blend", frames=1, gpu="node7:1", fence=8)
    gpu_stand_in.lease.fence = 7
    render(film.pk)
    film.refresh_from_db()
    assert (film.gpu, film.fence) == ("node7:1", 8)
