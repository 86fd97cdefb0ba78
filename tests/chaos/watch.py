"""Those who only look, past the proxy: at the ledger's journal, at the results that are stored, and at idle GPUs."""

import json
import time

import redis

from tests.chaos.actor import Actor
from tests.chaos.crew import GPUS

READY = ("SUCCESS", "FAILURE", "REVOKED")
#: Redis is away or refuses, and we are back in a moment.
AWAY = (redis.exceptions.RedisError,)


class JournalWatch(Actor):
    """Keeps the whole of the ledger's journal, which is capped: `entries` by task."""

    def __init__(self, chaos):
        super().__init__(chaos, "journal-watch", every=0.2)
        self.entries, self.all, self._last = {}, [], "0"

    def act(self):
        """Reads on."""
        try:
            for _, entries in self.chaos.world.client.xread({"gpu:journal": self._last}, count=1000):
                for at, fields in entries:
                    self._last = at
                    by_server = int(at.split("-")[0]) / 1000
                    entry = {"at": self.chaos.local(by_server), "by_server": by_server, **fields}
                    self.all.append(entry)
                    self.entries.setdefault(fields["task_id"], []).append(entry)
        except AWAY as error:
            self.say(f"{error!r}")


class EndWatch(Actor):
    """Hears every result that is stored: `stored` by task, in order, with the time."""

    def __init__(self, chaos):
        super().__init__(chaos, "end-watch", every=0)
        self.stored, self._pubsub = {}, None

    def act(self):
        """Waits for one."""
        try:
            if self._pubsub is None:
                self._pubsub = self.chaos.world.client.pubsub(ignore_subscribe_messages=True)
                self._pubsub.psubscribe("celery-task-meta-*")
            message = self._pubsub.get_message(timeout=0.5)
        except AWAY as error:
            self.say(f"{error!r}")
            self._pubsub = None
            return
        if message:
            meta = json.loads(message["data"])
            self.stored.setdefault(meta["task_id"], []).append((time.time(), meta["status"]))

    def ends(self, task):
        """The ends of a task that were stored."""
        return [(at, state) for at, state in self.stored.get(task, ()) if state in READY]


class IdleWatch(Actor):
    """How long was a GPU free, with a living worker that is up, while somebody waited for it?"""

    def __init__(self, chaos):
        super().__init__(chaos, "idle-watch", every=0.1)
        self._since, self.longest, self.longest_untroubled = {}, (0.0, "", 0.0), (0.0, "", 0.0)

    def act(self):
        """Looks at every GPU."""
        try:
            seen = [self.chaos.observer.inspect(gpu, change=False) for gpu in GPUS]
        except self.chaos.ledger_is_away:
            self._since.clear()
            return
        now = time.time()
        ready = {GPUS[gpu] for gpu in self.chaos.crew.ready}
        for gpu, (_, _, is_claimable, _, waits, *_) in zip(GPUS, seen, strict=True):
            if not (is_claimable and waits and gpu in ready):
                self._since.pop(gpu, None)
                continue
            since = self._since.setdefault(gpu, now)
            self.longest = max(self.longest, (now - since, gpu, since))
            calm = now - max(since, self.chaos.trouble_ended_at)
            if not self.chaos.is_in_trouble:
                self.longest_untroubled = max(self.longest_untroubled, (calm, gpu, since))
