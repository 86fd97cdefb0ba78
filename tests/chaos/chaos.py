"""One chaos: a server behind a proxy, workers, and those who send, command, steal, break and look."""

import gc
import importlib
import json
import os
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.views import pool_rows
from tests.chaos.breaker import Breaker
from tests.chaos.crew import GPUS, PATH, Crew
from tests.chaos.people import Operator, Stranger
from tests.chaos.senders import Sender
from tests.chaos.watch import EndWatch, IdleWatch, JournalWatch


class Chaos:
    """What all of its actors share.

    Attributes:
        wishes: What was sent.
        revoked: Tasks that somebody has taken back: Celery stores that as it likes.
        trouble_ended_at: When the last fault was mended.
    """

    ledger_is_away = LedgerUnavailable

    def __init__(self, seed, world):
        self.seed, self.world = seed, world
        self._log = (world.folder / "chaos.log").open("a", buffering=1)
        self._lock, self.counts = threading.Lock(), Counter()
        self.wishes, self.revoked = [], set()
        self._troubles, self.trouble_ended_at = 0, time.time()
        self.ledger = world.ledger
        self.observer = Ledger(replace(self.ledger.settings, redis_url=world.server.url), "")
        self.tasks = self._import_tasks()
        self.app = self.tasks.app
        self.crew = Crew(self)
        self.journal, self.ends, self.idle = JournalWatch(self), EndWatch(self), IdleWatch(self)
        self.stranger = Stranger(self, every=4)
        self.disturbers = [Breaker(self, every=2), self.stranger, Operator(self, every=2)]
        self.senders = [Sender(self, number, self.tasks, every=0.7) for number in (1, 2)]

    @property
    def actors(self):
        """All of them."""
        return [*self.senders, *self.disturbers, self.crew, self.idle, self.ends, self.journal]

    def run(self, seconds):
        """Breaks things for so long; then all is mended, and what remains may end. What ended an actor is raised."""
        self.crew.begin()
        for actor in self.actors:
            actor.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until and not any(actor.error for actor in self.actors):
            time.sleep(0.5)
        for actor in (*self.senders, *self.disturbers):
            actor.stop()
        self._mend()

    def _mend(self):
        """Undoes what was ordered, and what strangers have left."""
        for gpu in GPUS:
            self.observer.drain(gpu, drained=False)
        self.say("everything is mended")

    def close(self):
        """Ends those who only look, and the crew."""
        for actor in (self.crew, self.idle, self.ends, self.journal):
            actor.stop()
        gc.collect()  # an AsyncResult that goes says so to its backend, which must still be there
        self.observer.client.close()
        self.app.pool.force_close_all()
        self._log.close()

    def say(self, words):
        """A line in the log, with the time as the tasks' journal has it."""
        self._log.write(f"{time.time():.3f} {words}\n")

    def count(self, what):
        """One more."""
        with self._lock:
            self.counts[what] += 1

    def waiting(self):
        """How many wait in all lines."""
        return sum(row.pending for row in pool_rows(self.observer, []).values())

    @property
    def is_in_trouble(self):
        """Does a fault last?"""
        return self._troubles > 0

    @contextmanager
    def trouble(self):
        """A fault lasts."""
        self._troubles += 1
        try:
            yield
        finally:
            self._troubles -= 1
            self.trouble_ended_at = time.time()

    def local(self, at):
        """Our time when the server's clock said this."""
        return self.world.clock.local(at) if self.world.clock else at

    @property
    def plain_conf(self):
        """What a process that serves no GPU must set itself: else a broker that falls silent keeps it for ever."""
        options = {"socket_timeout": 3.0, "health_check_interval": 1.0}
        if self.world.rabbitmq:
            options = {"read_timeout": 3.0, "write_timeout": 3.0}
        return json.dumps({**self.world.conf, "broker_transport_options": options})

    def _import_tasks(self):
        """The workers' own project, as a sender in the same code base has it."""
        os.environ["TEST_URL"], os.environ["TEST_CONF"] = self.world.url, self.plain_conf
        os.environ["TEST_JOURNAL"] = str(self.world.folder / "journal.jsonl")
        sys.path[:0] = PATH
        return importlib.import_module("chaos_tasks")
