"""Heavy tasks, each made in another way."""

from importlib.util import find_spec

from celery import VERSION, chain, shared_task

from grown.app import app
from grown.bases import Beside, Heavy, Mixed, OwnRequest, Tracked
from grown.journal import note

ASKED = (
    *("id", "root_id", "parent_id", "group", "retries", "args", "kwargs", "argsrepr", "kwargsrepr", "is_eager"),
    *("called_directly", "timelimit", "shadow", "expires", "eta", "correlation_id", "ignore_result", "stamps"),
    *("stamped_headers", "replaced_task_nesting", "lang", "task", "callbacks", "errbacks", "chain", "chord", "headers"),
)


@app.task(base=Heavy)
def add(x, y):
    """An easy one."""
    return x + y


@app.task(base=Heavy, bind=True)
def echo(self, *args, **kwargs):
    """What it was given, and what it is."""
    return args, kwargs, self.owner if hasattr(self, "owner") else None


@app.task(base=Tracked, bind=True)
def tracked(self, how):
    """Ends as it is told to."""
    note("body", self.request.id, retries=self.request.retries)
    if how == "flaky" and not self.request.retries:
        raise ConnectionError(how)
    if how in ("bad", "flaky twice"):
        raise (ValueError if how == "bad" else ConnectionError)(how)
    return how


@app.task(base=Mixed)
def mixed(x):
    """With a mixin before."""
    return x


@app.task(base=Beside)
def beside(x):
    """With a mixin after."""
    return x


@shared_task(base=Heavy, bind=True)
def shared(self, x):
    """Of every app."""
    return self.name, self.app.main, x


@app.task(base=Heavy, name="grown.elsewhere", typing=False)
def untyped(x):
    """Called with anything."""
    return x


@app.task(base=Heavy, lazy=False)
def eager(x):
    """Made at once."""
    return x


@app.task(base=Heavy, Request=OwnRequest)
def requested(x):
    """With a request class of its own."""
    return x


@app.task(base=Heavy, bind=True)
def annotated(self):
    """With more from `task_annotations`."""
    return self.soft_time_limit, self.max_retries, self.on_bound_late, self.time_limit, self.request.timelimit


@app.task(base=Heavy, bind=True)
def rarely(self):
    """Routed with a priority."""
    return self.request.delivery_info["priority"]


@app.task(base=Heavy, bind=True)
def asked(self, *_, **__):
    """What a task may know of itself."""
    found = {name: getattr(self.request, name, "none") for name in ASKED}
    found["headers"] = sorted(name for name in found["headers"] or {} if name != "gpulease")
    return found


@app.task(base=Heavy, bind=True, max_retries=2)
def other_arguments(self, left):
    """Tries again with others."""
    if left:
        raise self.retry((left - 1,), countdown=0)
    return self.request.retries


@app.task(base=Heavy, bind=True)
def give_way(self, x):
    """Becomes a chain."""
    raise self.replace(chain(add.s(x, 1), add.s(1)))


@app.task(base=Heavy, bind=True)
def spawn(self, x):
    """Sends one from within."""
    return [add.delay(x, 1).id == self.request.id, len(self.request.children)]


@app.task(base=Heavy)
def thing(what):
    """Gives back what only pickle can carry."""
    return what


class Render(Heavy):
    """A task as a class."""

    name = "grown.render.Render"

    def __init__(self):
        """Once for each process."""
        self.made = 0

    def run(self, x):
        """The body."""
        self.made += 1
        return x * 2


app.register_task(Render())


if find_spec("pydantic") and VERSION >= (5, 5):
    from pydantic import BaseModel

    class Point(BaseModel):
        """An argument with a type."""

        x: int

    @app.task(base=Heavy, pydantic=True)
    def pointed(point: Point) -> Point:
        """It comes as a dict, and goes as one."""
        return Point(x=point.x + 1)
