"""More tasks of the project, for tests of brokers and result backends; which these are, `TEST_CONF` says."""

from celery.exceptions import Reject
from proj import app, run_of

from celery_gpulease import GPUTask

__all__ = ["app"]

_seen = set()


def facts_of(request):
    """What a task sees of its message, but for what names the task, the GPU or the queue."""
    return {
        "priority": request.delivery_info["priority"],
        "redelivered": request.delivery_info["redelivered"],
        "reply_to": request.reply_to,
        "correlation": request.correlation_id == request.id,
        "properties": {name: request.properties.get(name) for name in ("delivery_mode", "priority")},
        "headers": request.headers,
        "compression": request.get("compression"),
        "origin": request.origin,
        "args": repr(request.args),
    }


@app.task(base=GPUTask, bind=True)
def tell(self, *_):
    """Its request."""
    with run_of(self):
        facts = facts_of(self.request)
    facts["headers"] = {name: value for name, value in facts["headers"].items() if name != "gpulease"} or None
    return facts


@app.task(bind=True)
def tell_plainly(self, *_):
    """The same of a plain task."""
    return facts_of(self.request)


@app.task(base=GPUTask, bind=True)
def reject_once(self):
    """Asks to be put back, the first time."""
    with run_of(self):
        if self.request.id not in _seen:
            _seen.add(self.request.id)
            raise Reject(requeue=True)
        return "accepted"
