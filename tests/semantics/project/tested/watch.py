"""Writes down what the tests have left in their process, and what was imported: a plugin of the test run."""

import gc
import json
import os
import sys
import threading
from pathlib import Path


def pytest_sessionfinish(session):
    name = os.environ.get("PYTEST_XDIST_WORKER") or "main"
    found = {"modules": [one for one in ("celery", "kombu", "redis") if one in sys.modules]}
    threads = {one.name for one in threading.enumerate()} - {threading.main_thread().name}
    found["threads"] = sorted(one for one in threads if name == "main" or "gpu" in one)  # xdist has threads of its own
    found["cuda"] = [one for one in os.environ if one.startswith(("CUDA", "GPU", "CELERY"))]
    if "celery.signals" in sys.modules:
        found |= of_celery()
    Path(f"left.{name}.json").write_text(json.dumps(found))


def of_celery():
    gc.collect()
    from celery import _state, signals

    ours = [
        name
        for name in ("task_prerun", "task_postrun", "worker_process_init", "worker_shutting_down")
        for (uid, *_), _ in getattr(signals, name).receivers or []
        if str(uid).startswith("gpulease")
    ]
    from celery_gpulease.worker import gpu_worker

    default = _state.default_app
    return {"signals": ours, "worker": gpu_worker.current is not None, "default": default and default.main}
