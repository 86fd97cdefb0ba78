"""The workers' app. pytest-celery copies this file, and writes what is right for a test over three of its lines."""

from celery import Celery

from celery_gpulease import GPULease

imports = None
app = Celery("celery_test_app")
config = None

if config:
    app.config_from_object(config)
GPULease(app)
