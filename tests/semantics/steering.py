"""A laboratory for control and order: one server, two GPUs' workers that send events, and what was heard of them."""

import gc
import os
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

from celery import Celery

from celery_gpulease.embedded import EmbeddedServer
from tests.faults.conftest import world_on
from tests.faults.world import HOST, PROJECT, SOON
from tests.waiting import wait_until

OWN = Path(__file__).parent / "project"
#: A pool that nobody serves: what is sent to it is held until somebody ends it.
NOWHERE = "nowhere"


class Lab:
    """What the tests of a module share. GPUs 0 and 1 have a worker each, unless there are none."""

    def __init__(self, server_binary, folder, workers=2, **conf):
        self._exit = ExitStack()
        self.server = self._exit.enter_context(EmbeddedServer(binary=server_binary))
        self.world = self._exit.enter_context(world_on(self.server.url, folder, **conf))
        self.plain = Celery("plain", broker=self.server.url, backend=self.server.url, set_as_current=False)
        self._exit.callback(self.plain.close)
        self.heard = Heard(self.plain)
        self._exit.callback(self.heard.stop)
        self.workers = [self.start(gpu) for gpu in range(workers)]

    def start(self, gpu, *options):
        """A worker that sends events."""
        path = os.pathsep.join(map(str, (OWN, PROJECT)))
        process = self.world.processes.worker("steering", gpu, "-E", *options, PYTHONPATH=path)
        here = self.world.ledger.keys.here(f"{HOST}:{gpu}")
        wait_until(lambda: self.world.client.pubsub_numsub(here)[0][1], SOON, "a listener")
        return process

    def send(self, name, *args, **options):
        """Sends a task of the project by its name; its id."""
        return self.world.send(name, *args, **options)

    def background(self, *arguments):
        """`celery -A steering …`, until the world ends."""
        path = os.pathsep.join(map(str, (OWN, PROJECT)))
        return self.world.processes.start("celery", "-A", "steering", *arguments, name="celery", PYTHONPATH=path)

    def celery(self, *arguments):
        """The same, at its end."""
        process = self.background(*arguments)
        process.wait()
        return process

    def noted(self, task, what="revoked"):
        """What the project noted of a task."""
        return [line for line in self.world.journal() if line["what"] == what and line["task"] == task]

    def is_revoked(self, task, *, terminated=False, expired=False, ran=0):
        """The task ends as a revoked one ends in Celery: its state, one signal and one event, from a worker."""
        self.world.ends(task, "REVOKED")
        self.world.wait(lambda: self.noted(task), SOON, task)
        (line,) = self.noted(task)
        assert (line["terminated"], line["expired"]) == (terminated, expired)
        assert line["pid"] in [worker.pid for worker in self.workers]
        (event,) = self.world.wait(lambda: self.heard.of(task), SOON, task)
        assert (event["terminated"], event["expired"]) == (terminated, expired)
        assert event["hostname"].endswith(f"@{HOST}")
        assert len(self.world.runs(task)) == ran, self.world.story(task)

    def rest(self):
        """As the world's, for what one test has sent."""
        self.world.rest()
        self.world.sent.clear()

    def close(self):
        """Ends all of it. A result that is collected later would ask its backend, which is gone then."""
        gc.collect()
        self._exit.close()


class Heard(threading.Thread):
    """The `task-revoked` events of all workers."""

    def __init__(self, app):
        super().__init__(daemon=True)
        self._app, self._events = app, []
        self._is_ready, self._is_over = threading.Event(), threading.Event()
        self.start()
        assert self._is_ready.wait(SOON)

    def run(self):
        """Listens until it is stopped."""
        with self._app.connection_for_read() as first:
            receiver = self._app.events.Receiver(first, handlers={"task-revoked": self._events.append})
            with receiver.consumer_context(wakeup=False) as (connection, *_):
                self._is_ready.set()
                while not self._is_over.is_set():
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=0.2)

    def of(self, task):
        """Those of one task."""
        return [event for event in self._events if event["uuid"] == task]

    def stop(self):
        """Hears no more."""
        self._is_over.set()
        self.join(SOON)
