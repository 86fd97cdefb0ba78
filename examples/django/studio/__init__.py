"""The project. With Django comes its Celery app, which is what `shared_task` means."""

from studio.celery import app as celery_app

__all__ = ["celery_app"]
