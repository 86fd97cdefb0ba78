"""The task that needs a GPU."""

import time

from celery import shared_task

from celery_gpulease import GPUTask
from films.models import Film


@shared_task(base=GPUTask, bind=True)
def render(self: GPUTask, film_id: int) -> None:
    """Stands for an hour of work: each frame takes a tenth of a second."""
    film = Film.objects.get(pk=film_id)
    for _ in range(film.frames):
        self.lease.check()  # raises LeaseLost if the GPU has gone to somebody else
        time.sleep(0.1)
    Film.objects.filter(pk=film_id, fence__lt=self.lease.fence).update(gpu=self.gpu.id, fence=self.lease.fence)
