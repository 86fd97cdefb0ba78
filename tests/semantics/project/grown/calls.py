"""Calls tasks in every way, waits for their ends, and prints what came of each."""

import json
import sys
from datetime import date

from celery import chain, chord, group

import grown.mail.tasks as mail
import grown.render.tasks as render
from grown.app import app

CALLS = {
    "add": lambda: render.add.delay(1, 2),
    "keyword arguments": lambda: render.add.apply_async((), {"x": 1, "y": 2}),
    "yaml": lambda: render.add.apply_async((1, 2), serializer="yaml"),
    "msgpack": lambda: render.echo.apply_async(([1, b"\x00"],), {"k": "é"}, serializer="msgpack"),
    "json": lambda: render.echo.apply_async(([1, None, 2.5],), {"k": "\u2028"}, serializer="json"),
    "pickle": lambda: render.thing.delay({date(2020, 2, 2), frozenset([1])}),
    "bzip2": lambda: render.echo.apply_async(("x" * 1000,), compression="bzip2"),
    "lzma": lambda: render.echo.apply_async(("x" * 1000,), compression="lzma"),
    "hooks of an own base": lambda: render.tracked.delay("well"),
    "its failure": lambda: render.tracked.delay("bad"),
    "its autoretry": lambda: render.tracked.delay("flaky"),
    "its last retry": lambda: render.tracked.delay("flaky twice"),
    "a mixin before": lambda: render.mixed.delay(1),
    "a mixin after": lambda: render.beside.delay(1),
    "shared_task": lambda: render.shared.delay(1),
    "typing off": lambda: render.untyped.delay(1, 2, 3),
    "not lazy": lambda: render.eager.delay(1),
    "an own request": lambda: render.requested.delay(1),
    "annotations": render.annotated.delay,
    "a routed priority": render.rarely.delay,
    "its request": lambda: render.asked.apply_async(
        (1,), {"k": 2}, headers={"trace": "abc"}, time_limit=90, task_id="an-id", shadow="shown"
    ),
    "retry with other arguments": lambda: render.other_arguments.delay(2),
    "replace by a chain": lambda: render.give_way.delay(1),
    "sending from within": lambda: render.spawn.delay(1),
    "a class": lambda: app.tasks["grown.render.Render"].delay(4),
    "by name": lambda: app.send_task("grown.render.tasks.add", (3, 4)),
    "a plain task": lambda: mail.send.delay("x"),
    "a shared plain task": lambda: mail.remember.delay("x"),
    "a mixed chain": chain(mail.remember.s(1), render.add.s(2), mail.remember.s()),
    "a group": group(render.add.s(i, i) for i in range(3)),
    "a mixed chord": lambda: chord([render.add.s(1, 2), mail.remember.s(3)])(render.thing.s()),
    "stamps": lambda: render.asked.s().stamp(owner="me").apply_async(task_id="stamped"),
}
if hasattr(render, "pointed"):
    CALLS["pydantic"] = lambda: render.pointed.delay({"x": "1"})


def outcome(result):
    """What its sender sees."""
    value = result.get(timeout=60, propagate=False)
    return {
        "value": repr(value),
        "state": getattr(result, "state", None),
        "kwargs": repr(getattr(result, "kwargs", None)),
        "args": repr(getattr(result, "args", None)),
        "name": getattr(result, "name", None),
        "retries": getattr(result, "retries", None),
        "children": len(result.children or ()),
    }


def main():
    """Sends all, then waits for all."""
    app.loader.import_default_modules()
    sent = {name: call() for name, call in CALLS.items()}
    json.dump({name: {"id": result.id, **outcome(result)} for name, result in sent.items()}, sys.stdout)


if __name__ == "__main__":
    main()
