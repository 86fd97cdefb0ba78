"""The app."""

import os

from celery import Celery

from celery_gpulease import GPULease

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "djangosite.settings")

app = Celery("djangosite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
GPULease(app)
