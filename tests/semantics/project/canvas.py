"""Every task twice: `plain.add` is Celery's, `gpu.add` a GPU task. A canvas must do the same on both roads."""

import json
import os
import signal
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

from celery import Celery, Task
from celery.exceptions import Reject

from celery_gpulease import GPULease, GPUTask

JOURNAL = Path(os.environ.get("TEST_JOURNAL", os.devnull))
#: What a request says of where its task belongs, and what was sent with it.
FACTS = (
    *("id", "root_id", "parent_id", "group", "group_index", "origin", "reply_to", "correlation_id", "argsrepr"),
    *("kwargsrepr", "headers", "stamps", "stamped_headers", "traceparent", "shadow", "timelimit", "ignore_result"),
    *("expires", "eta", "retries", "lang", "replaced_task_nesting", "chord", "callbacks", "errbacks", "chain"),
)


def note(**line):
    """One line at the end of the journal, in one write, whoever else writes."""
    fd = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, (json.dumps({"at": time.time(), **line}) + "\n").encode())
    finally:
        os.close(fd)


class NotedTask(GPUTask):
    """A GPU task whose runs are in the journal; what is called as a function is part of another's run."""

    abstract = True

    def __call__(self, *args, **kwargs):
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        run = uuid.uuid4().hex
        note(
            what="start",
            run=run,
            task=self.request.id,
            name=self.name,
            gpu=self.gpu.id,
            fence=self.lease.fence,
            pid=os.getpid(),
        )
        try:
            return super().__call__(*args, **kwargs)
        finally:
            note(what="end", run=run, how="over")


def add(_self, x, y):
    return x + y


def total(_self, numbers):
    return sum(numbers)


def fail(_self, *_args):
    raise ValueError("no")


def facts(self, *_args):
    """Of this request."""
    return {name: getattr(self.request, name, None) for name in FACTS}


def device(self, *_args):
    """Where it runs, and whether under a lease that is there."""
    has_lease = isinstance(self, GPUTask) and bool(GPULease(self.app).ledger.client.exists(f"gpu:lease:{self.gpu.id}"))
    gpu, lease = getattr(self, "gpu", None), getattr(self, "lease", None)
    return [gpu and gpu.id, lease and lease.fence, os.environ.get("CUDA_VISIBLE_DEVICES"), has_lease]


def replace(self, x):
    """Another task takes its place."""
    raise self.replace(self.road.add.s(x, 1))


def replace_by_group(self, x):
    """A group takes its place, which makes a chord of it."""
    from celery import group  # noqa: PLC0415

    raise self.replace(group(self.road.add.s(x, one) for one in range(3)))


def enlarge(self, x):
    """One more task in the header of its chord."""
    self.add_to_chord(self.road.add.si(x, 10))
    return x


def last(_self, numbers):
    """Of a chord whose header has grown: in which order its parts come is not said."""
    return sorted(str(one) for one in numbers)


def die_once(_self, gate):
    """Its process is killed, the first time."""
    path = JOURNAL.parent / gate
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return gate


def reject_once(self):
    """Asks to run again, until it is told that it does."""
    if not self.request.delivery_info["redelivered"]:
        raise Reject(requeue=True)
    return "again"


def told(self, task_id):
    """An error callback that gets the id of what failed: a task that is sent."""
    note(what="told", task=self.request.id, of=task_id, device=device(self))


BOUND = (add, total, fail, facts, device, replace, replace_by_group, enlarge, last, die_once, told)


def told_inline(request, exc, traceback):
    """An error callback that gets three things, which Celery calls where the failure is recorded."""
    note(what="told inline", of=request.id, error=str(exc))


def road_of(app, road, base):
    """The tasks of one road."""
    made = SimpleNamespace()

    def make_task(name, body, **options):
        task = app.task(name=f"{road}.{name}", base=base, shared=False, lazy=False, road=made, **options)(body)
        setattr(made, name, task)

    for body in BOUND:
        make_task(body.__name__, body, bind=True)
    make_task("reject_once", reject_once, bind=True, acks_late=True)
    make_task("die_only_once", die_once, bind=True, acks_late=False)
    make_task("told_inline", told_inline)
    return made


def make(url, conf):
    """The app; its attributes `plain` and `gpu` are the roads, whose attributes are the tasks."""
    app = Celery("canvas", broker=url, backend=url, set_as_current=False)
    app.conf.update(conf)
    GPULease(app)
    for name, base in (("plain", Task), ("gpu", NotedTask)):
        setattr(app, name, road_of(app, name, base))
    return app


if "TEST_URL" in os.environ:  # in a worker
    app = make(os.environ["TEST_URL"], json.loads(os.environ["TEST_CONF"]))
