"""Django's settings, Celery's among them."""

import os

SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["djangosite.shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["TEST_DATABASE"]}}
CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ["TEST_URL"]
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_GPULEASE_HOST = "djangohost"
CELERY_GPULEASE_LEASE_TTL = 5
