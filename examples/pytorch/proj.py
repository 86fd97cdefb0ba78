"""The app. It is all that a sender needs: nothing here imports torch."""

import os

from celery import Celery

from celery_gpulease import GPULease

url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
app = Celery("proj", broker=url, backend=url, include=["tasks"])
GPULease(app)
