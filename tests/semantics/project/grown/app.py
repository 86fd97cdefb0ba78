"""The app: late, by name, from a config module."""

import logging
import os

from celery import Celery, signals

from .journal import note

app = Celery("grown", set_as_current=False)
app.config_from_object("grown.config")
app.set_current()
app.autodiscover_tasks(["grown.render", "grown.mail"])


if os.environ["GROWN_GPU"] == "yes":
    from celery_gpulease import GPULease

    GPULease(app)


@signals.setup_logging.connect
def set_up_logging(**_):
    """Logging is the project's own affair."""
    logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")


def watch(signal, name, task_id):
    """Notes each time that a signal is sent for a task of the project."""

    def noted(sender=None, **fields):
        note(name, task_id(fields))

    signal.connect(noted, weak=False)


watch(signals.task_prerun, "prerun", lambda fields: fields["task_id"])
watch(signals.task_postrun, "postrun", lambda fields: fields["task_id"])
watch(signals.task_received, "received", lambda fields: fields["request"].id)
watch(signals.task_success, "success", lambda fields: None)
watch(signals.task_failure, "failure", lambda fields: fields["task_id"])
watch(signals.task_retry, "retry", lambda fields: fields["request"].id)
watch(signals.before_task_publish, "before_publish", lambda fields: fields["headers"]["id"])
watch(signals.after_task_publish, "after_publish", lambda fields: fields["headers"]["id"])
