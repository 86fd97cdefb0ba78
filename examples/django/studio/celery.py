"""The app, as Celery's documentation has it for Django, and one line more."""

import os

from celery import Celery

from celery_gpulease import GPULease

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "studio.settings")

app = Celery("studio")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
GPULease(app)
