"""What is not Django's default. Celery's settings begin with CELERY_, ours with CELERY_GPULEASE_."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "for an example"  # noqa: S105
DEBUG = True
USE_TZ = True
TIME_ZONE = "UTC"  # without one, logs and tables have the time of Chicago, Django's default
INSTALLED_APPS = ["films"]
ROOT_URLCONF = "studio.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "db.sqlite3",
        "ATOMIC_REQUESTS": True,  # so a view must not send a task before its transaction is committed
        "TEST": {"NAME": BASE_DIR / "test.sqlite3"},  # a worker has a connection of its own: not for memory
    },
}

CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
CELERY_GPULEASE_LEASE_TTL = 15
