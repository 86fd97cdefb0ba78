"""Those who act on a ledger: senders, workers and strangers, without any Celery. Time passes by moving deadlines."""

import itertools
import json
from dataclasses import dataclass

from celery_gpulease.model import Claim, Device, Held, Presence

#: The answers to START by which a run begins.
STARTED = ("run", "rerun", "again")
LONG_AGO = 1000  # milliseconds of the epoch


class Worker:
    """Serves a GPU as far as the ledger can tell: present, and subscribed to its `here` channel."""

    def __init__(self, world, device, pools, instance):
        self.world, self.device, self.pools, self.gpu = world, device, pools, device.id
        self.presence = Presence(instance, f"gpu@{device.host}", device.host, 1, "1")

    def join(self, dead=""):
        answer = self.world.ledger.join(self.device, self.pools, self.presence, dead)
        if answer == ["joined"]:
            self.world.listen(self.gpu)
        return answer

    def claim(self):
        return self.world.ledger.claim(self.gpu)

    def pop(self):
        return self.world.pop(self.gpu)

    def start(self, claim, nonce="nonce", *, acks_late=True, limit=3):
        return self.world.ledger.start(
            claim, nonce, self.presence.instance, acks_late=acks_late, limit=limit, stores_result=True
        )

    def run(self, nonce="nonce", *, acks_late=True, limit=3):
        """Takes the next message and starts it."""
        claim = self.pop()
        assert claim is not None, f"nothing was routed to {self.gpu}"
        assert self.start(claim, nonce, acks_late=acks_late, limit=limit) in STARTED
        return claim

    def report(self, running=None, grace=0):
        return self.world.ledger.report(self.gpu, self.presence, running, grace)

    def beat(self, running):
        return self.world.ledger.beat(running, self.presence)

    def close(self):
        self.world.ledger.close(self.gpu, self.presence)

    def leave(self):
        self.world.ledger.leave(self.gpu, self.presence)

    def die(self):
        """Killed: its subscription is gone at once, its presence and lease when their time is over."""
        self.world.deafen(self.gpu)


@dataclass
class World:
    """A ledger and everything that can happen to it."""

    ledger: object

    def __post_init__(self):
        self.client = self.ledger.client
        self.key = self.ledger.keys.named
        self._pubsub = self.client.pubsub()
        self._numbers = itertools.count(1)

    def close(self):
        self._pubsub.close()

    # senders

    def held(self, ticket=None, task_id=None, run=None, **other):
        number = next(self._numbers)
        ticket = ticket or f"ticket-{number}"
        given = {"task": "proj.render", "pool": "default", "pin": "", "priority": 0, "eta_ms": 0, "expires_ms": 0}
        # what cjson would spoil: an empty list, a large number
        message = (
            f'{{"args": [[], 12345678901234567890], "queue": "\1", "gpulease": {{"ticket": "{ticket}", "claim": \2}}}}'
        )
        return Held(
            ticket=ticket,
            task_id=task_id or f"task-{number}",
            message=message,
            run_ticket=run.ticket if run else "",
            run_token=run.token if run else "",
            **(given | other),
        )

    def hold(self, **given):
        held = self.held(**given)
        self.ledger.hold(held)
        return held.ticket

    # workers

    def worker(self, gpu="node:0", pools=("default",), instance=None):
        return Worker(self, device(gpu), tuple(pools), instance or f"instance-{next(self._numbers)}")

    def join(self, gpu="node:0", pools=("default",)):
        worker = self.worker(gpu, pools)
        assert worker.join() == ["joined"]
        return worker

    def listen(self, gpu):
        self._pubsub.subscribe(channel := self.ledger.keys.here(gpu))
        self._confirmed("subscribe", channel)

    def deafen(self, gpu):
        if (channel := self.ledger.keys.here(gpu)) in self._pubsub.channels:
            self._pubsub.unsubscribe(channel)
            self._confirmed("unsubscribe", channel)

    def heard(self):
        """The words that workers were woken with, so far."""
        words = []
        while message := self._pubsub.get_message(timeout=0.05):
            words += [(message["channel"], message["data"])] if message["type"] == "message" else []
        return words

    def _confirmed(self, kind, channel):
        while (message := self._pubsub.get_message(timeout=5)) is None or message["type"] != kind:
            assert message is not None, f"no answer to {kind} {channel}"

    def routed(self, gpu="node:0"):
        """The message that waits in a GPU's queue last, as it is."""
        return self.client.lindex(self.ledger.route_to(gpu), -1)

    def pop(self, gpu="node:0"):
        message = self.client.rpop(self.ledger.route_to(gpu))
        return Claim.from_header(json.loads(message)["gpulease"]) if message else None

    def drained(self, gpu="node:0"):
        """It gets nothing while the test looks at who waits."""
        self.ledger.drain(gpu, drained=True)

    # what is true

    def ticket(self, ticket):
        return self.client.hgetall(self.key("ticket", ticket))

    def state(self, ticket):
        """A ticket's state, 'ended', or None where nobody ever heard of it."""
        if found := self.client.hget(self.key("ticket", ticket), "state"):
            return found
        return "ended" if self.client.zscore(self.key("ended"), ticket) else None

    def states(self, *tickets):
        return [self.state(ticket) for ticket in tickets]

    def line(self, pool="default"):
        return self.client.zrange(self.key("pending", pool), 0, -1)

    def lease(self, gpu="node:0"):
        return self.client.get(self.ledger.keys.lease(gpu))

    def lease_ms(self, gpu="node:0"):
        return self.client.pttl(self.ledger.keys.lease(gpu))

    def claim_of(self, gpu="node:0"):
        return self.client.hgetall(self.key("claim", gpu))

    def free(self, pool="default"):
        return self.client.zrange(self.key("free", pool), 0, -1)

    def closed(self, gpu="node:0"):
        return self.client.hgetall(self.key("closed", gpu))

    def count(self, what):
        return int(self.client.hget(self.key("counters"), what) or 0)

    def journal(self):
        return [entry["what"] for _, entry in self.client.xrange(self.key("journal"))]

    def everything(self):
        """The whole ledger but for what only says that time passed."""
        layout = self.ledger.keys.named("layout")  # whoever comes first writes it
        keys = sorted(key for key in self.client.scan_iter("*", count=1000) if key != layout)
        return {key: self.client.dump(key) for key in keys}

    def now_ms(self):
        seconds, microseconds = self.client.time()
        return seconds * 1000 + microseconds // 1000

    # time passes

    def lapse(self, gpu="node:0"):
        """The lease of our claim is over."""
        if self.lease(gpu) is not None and self.lease(gpu) == self.claim_of(gpu).get("token"):
            self.client.pexpireat(self.ledger.keys.lease(gpu), LONG_AGO)
        self.client.zadd(self.key("deadlines"), {gpu: LONG_AGO}, xx=True)

    def age(self, gpu="node:0", left_ms=100):
        """The lease of our claim is nearly over."""
        self.client.pexpire(self.ledger.keys.lease(gpu), left_ms)
        self.client.zadd(self.key("deadlines"), {gpu: self.now_ms() + left_ms}, xx=True)

    def lapse_presence(self, gpu="node:0"):
        self.client.delete(self.key("worker", gpu))

    def make_due(self, ticket, at_ms=LONG_AGO):
        self.client.hset(self.key("ticket", ticket), "eta_ms", at_ms)
        self.client.zadd(self.key("scheduled"), {ticket: at_ms}, xx=True)

    def end_delay(self, ticket):
        """What died twice waits no longer."""
        self.make_due(ticket)
        self.ledger.promote()

    def make_expired(self, ticket):
        self.client.hset(self.key("ticket", ticket), "expires_ms", LONG_AGO)
        self.client.zadd(self.key("expiring"), {ticket: LONG_AGO}, xx=True)

    def outage(self):
        """Nobody's heartbeat has reached the server for long."""
        self.client.hset(self.key("pulse"), mapping={"at": LONG_AGO, "grace_until": 0, "granted_at": 0})

    def end_grace(self):
        self.client.hset(self.key("pulse"), mapping={"at": self.now_ms(), "grace_until": LONG_AGO})

    def quarantine_is_over(self, gpu="node:0"):
        """The next idle report of its worker ends it."""
        if self.client.hexists(self.key("closed", gpu), "quarantine"):
            self.client.hset(self.key("closed", gpu), "until_ms", LONG_AGO)

    # strangers

    def stranger_takes(self, gpu="node:0", ms=60_000):
        return bool(self.client.set(self.ledger.keys.lease(gpu), "stranger", nx=True, px=ms))

    def delete_lease(self, gpu="node:0"):
        self.client.delete(self.ledger.keys.lease(gpu))

    def lose_message(self, ticket):
        """Somebody types DEL, or the server evicts it."""
        assert self.client.delete(self.key("message", ticket))

    def lose_ticket(self, ticket):
        """The same, of the ticket itself; which task it was of nobody knows then."""
        self.client.hdel(self.key("task", self.ticket(ticket)["task_id"]), ticket)
        assert self.client.delete(self.key("ticket", ticket))

    def want(self, gpu="node:0"):
        self.client.set(self.key("want", gpu), "stranger", px=60_000)

    def unwant(self, gpu="node:0"):
        self.client.delete(self.key("want", gpu))


def device(gpu):
    """`node:3` by that name; a UUID as the third GPU of its host."""
    host, colon, index = gpu.rpartition(":")
    return Device(gpu, int(index), host) if colon else Device(gpu, 3, "node", uuid=gpu)
