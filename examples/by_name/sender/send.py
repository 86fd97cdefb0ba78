"""Another project, without the tasks' code: it knows them by name, and which names need which pool."""

import os

from celery import Celery

from celery_gpulease import GPULease, GPURouter

url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
app = Celery("sender", broker=url, backend=url)
app.conf.task_routes = (GPURouter({"render.*": "a100"}),)
GPULease(app)

film = app.send_task("render.scene", ("a.blend",))
print(film.get(timeout=60))

by_signature = app.signature("render.scene", ("b.blend",), priority=3).delay()
print(by_signature.get(timeout=60))

mail = app.send_task("mail.notify", ("the film is ready",))
print(mail.get(timeout=60))
