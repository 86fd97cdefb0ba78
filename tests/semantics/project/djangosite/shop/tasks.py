"""Tasks of the app, found by `autodiscover_tasks`."""

from celery import shared_task

from celery_gpulease import GPUTask


@shared_task(base=GPUTask, bind=True)
def render(self, price):
    """Runs on a GPU."""
    return self.gpu.id, price, self.lease.fence > 0


@shared_task
def mail(text):
    """Needs none."""
    return text
