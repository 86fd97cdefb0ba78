"""GPUs by the thousand and lines by the million, without any worker; and how long the server takes."""

import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

from celery import Celery

from celery_gpulease import GPULease, GPUTask
from celery_gpulease.ledger import Ledger, scripts
from celery_gpulease.model import Claim, Device, Held, Presence
from celery_gpulease.settings import Settings

PAGE = 1000
GPUS_OF_A_HOST = 8
#: Nothing lapses while it is measured.
TTL = 24 * 3600.0
#: Microseconds below which a command is in no log: a script's own steps, whose entries would slow it down.
LEAST = 10
POOL = "default"


@contextmanager
def undisturbed(one):
    """Runs this server; no other process takes the core from it, where we may say so: its time is its own."""
    with one:
        if os.geteuid() == 0:
            os.sched_setscheduler(one.pid, os.SCHED_FIFO, os.sched_param(1))
        yield one


class Fleet:
    """A ledger with GPUs that look alive, and tasks that look like Celery's."""

    def __init__(self, url):
        self.ledger = Ledger(Settings(redis_url=url, lease_ttl=TTL, heartbeat_interval=TTL / 3))
        self.client = self.ledger.client
        self.key = self.ledger.keys.named
        self.client.config_set("client-output-buffer-limit", "pubsub 0 0 0")
        self.client.config_set("slowlog-max-len", 200_000)
        self._numbers = itertools.count()
        self._sample, self._shas = sample_message(url), {}
        self.client.flushall()
        self._subscriptions = self.client.pubsub()

    def close(self):
        self._subscriptions.close()
        self.client.close()

    # who is there

    def join(self, number, pool=POOL, of="node"):
        """So many GPUs, whose workers are present and subscribed; their ids."""
        places = [divmod(at, GPUS_OF_A_HOST) for at in range(number)]
        devices = [self.device(f"{of}{host}:{index}") for host, index in places]
        for page in batched(devices):
            self.ledger._claiming_each("join", map(partial(self._joining, pool=pool), page))
            self._subscriptions.subscribe(*(self.ledger.keys.here(one.id) for one in page))
            self.ledger._claiming_each("claim", ({"gpu": one.id, "program_fence": 0, "hold_ms": 0} for one in page))
        self.listen()
        return [one.id for one in devices]

    def _joining(self, device, pool):
        presence = self.presence(device.id)
        ms = round(TTL * 1000)
        return {
            "gpu": device.id, "instance": presence.instance, "presence": json.dumps(asdict(presence)),
            "alias": device.alias, "index": device.index, "uuid": "", "model": "", "memory_bytes": "",
            "host": device.host, "pools": pool,
            "ttl_ms": ms, "heartbeat_ms": ms // 3, "dead": "", "route": self.ledger.route_to(device.id),
        }  # fmt: skip

    def device(self, gpu):
        host, _, index = gpu.partition(":")
        return Device(gpu, int(index), host)

    def presence(self, gpu):
        host = gpu.partition(":")[0]
        return Presence(f"instance-{gpu}", f"gpu@{host}", host, 4711, "0.1.0", "realm" * 8, 123456, ((4712, 123457),))

    def listen(self):
        """What the channels have said is read, so that it takes no memory."""
        while self._subscriptions.get_message(timeout=0.2):
            pass

    # who waits

    def held(self, pool=POOL, **other):
        number = f"{next(self._numbers):08}"
        ticket, task_id = number.rjust(20, "a"), f"{number}-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
        message = self._sample.replace("<ticket>", ticket).replace("<task>", task_id)
        given = {"pin": "", "priority": 0, "eta_ms": 0, "expires_ms": 0} | other
        return Held(ticket=ticket, task_id=task_id, task="project.render", pool=pool, message=message, **given)

    def fill(self, number, pool=POOL, **other):
        """So many more tasks wait."""

        def fill_page(page):
            self.ledger._claiming_each("hold", (asdict(self.held(pool, **other)) for _ in page))

        with ThreadPoolExecutor(2) as threads:  # one packs while the server is at the other's
            list(threads.map(fill_page, batched(range(number))))

    def waiting(self, pool=POOL):
        return self.client.zcard(self.key("pending", pool))

    # runs

    def pop(self, gpu):
        message = self.client.rpop(self.ledger.route_to(gpu))
        return Claim.from_header(json.loads(message)["headers"]["gpulease"]) if message else None

    def start(self, claim, nonce="nonce"):
        answer = self.ledger.start(claim, nonce, f"instance-{claim.gpu}", acks_late=True, limit=99, stores_result=True)
        assert answer in ("run", "rerun", "again"), answer
        return claim

    def report(self, claim):
        return self.ledger.report(claim.gpu, self.presence(claim.gpu), claim, 15)

    def beat(self, claim):
        assert self.ledger.beat(claim, self.presence(claim.gpu)) == "present"

    # what it costs

    @contextmanager
    def watch(self, least=LEAST):
        """Yields a dict that has, when the block is over, each script's name → microseconds of each of its calls."""
        found = {}
        self.client.config_set("slowlog-log-slower-than", least)
        self.client.slowlog_reset()
        yield found
        self.client.config_set("slowlog-log-slower-than", -1)
        for entry in self.client.slowlog_get(-1):
            command, _, rest = entry["command"].decode(errors="replace").partition(" ")
            if command == "EVALSHA":
                found.setdefault(self._name_of(rest.partition(" ")[0]), []).append(entry["duration"])

    def _name_of(self, sha):
        if not self._shas:
            self._shas = {self.client.script_load(scripts.source(one).text): one for one in scripts.names()}
        return self._shas[sha]

    @contextmanager
    def cpu(self):
        """Yields a list that has, when the block is over, the seconds of CPU that the server's main thread took."""
        found, before = [], self._cpu()
        yield found
        found.append(self._cpu() - before)

    def _cpu(self):
        used = self.client.info("cpu")
        return used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"]

    def memory(self):
        """Bytes that the server's data take."""
        return self.client.info("memory")["used_memory"]


def sample_message(url):
    """A held message as the seam makes it, of a task with a few arguments; its ids are `<ticket>` and `<task>`."""
    app = Celery("project", broker=url, backend=url)
    app.conf.gpulease_redis_url = url
    GPULease(app)
    client = Ledger(Settings(redis_url=url)).client

    @app.task(base=GPUTask, name="project.render", shared=False)
    def render(scene, frames, quality):
        pass

    sent = render.delay("s3://bucket/scenes/2026/street-at-night.blend", frames=[1, 250], quality="high")
    ticket = client.hkeys(f"gpu:task:{sent.id}").pop()
    message = client.get(f"gpu:message:{ticket}")
    return message.replace(ticket, "<ticket>").replace(sent.id, "<task>")


def batched(many, size=PAGE):
    """Lists of so many."""
    many = iter(many)
    while page := list(itertools.islice(many, size)):
        yield page
