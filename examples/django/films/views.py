"""Order a film, and see what has become of all."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from films.models import Film
from films.tasks import render


@csrf_exempt  # so that curl can order one
def films(request: HttpRequest) -> HttpResponse:
    """POST orders a film; GET lists them."""
    if request.method == "POST":
        film = Film.objects.create(scene=request.POST["scene"])
        render.delay_on_commit(film.pk)  # a worker shall not look for a film that is not there yet
    lines = [f"{film}\n" for film in Film.objects.order_by("pk")]
    return HttpResponse("".join(lines), content_type="text/plain")
