"""Sends within a transaction, as a view does."""

import json
import sys

import django

django.setup()

from celery.result import AsyncResult  # noqa: E402
from django.db import transaction  # noqa: E402

from djangosite import celery_app  # noqa: E402
from djangosite.shop.tasks import render  # noqa: E402

ledger = celery_app.gpulease.ledger
found = {}
with transaction.atomic():
    render.delay_on_commit(1)
    render.apply_async_on_commit((2,), task_id="second", priority=1)
    found["held in the transaction"] = ledger.client.exists("gpu:task:second")
found["value"] = AsyncResult("second").get(timeout=60)
json.dump(found, sys.stdout)
