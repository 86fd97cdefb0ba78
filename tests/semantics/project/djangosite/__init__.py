"""A Django project, as its documentation and Celery's make one."""

from .celery import app as celery_app

__all__ = ["celery_app"]
