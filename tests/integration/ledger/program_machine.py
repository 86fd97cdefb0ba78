"""Random operations by those who run programs, beside tasks, workers, operators and a reconciler.

Whoever waits dies, is cut off for a while or comes back at any moment; so do workers, and leases lapse. What tasks are
promised is the model of `machine`; here it is what programs are: one on a GPU at a time, and each has an end.
"""

import itertools

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.checks import inconsistencies
from celery_gpulease.ledger.turns import Program
from celery_gpulease.reconcile.gpus import correct_gpus
from celery_gpulease.reconcile.places import correct_places
from celery_gpulease.settings import Settings
from tests.integration.ledger.world import STARTED, World

GPUS = {"node:0": ("default",), "node:1": ("fast", "default"), "other:0": ("default", "fast")}
HOSTS, POOLS = ("node", "other"), ("default", "fast")
#: What may become of a program that asks to keep its lease.
KEPT = ("renewed", "regained")

gpus, some = st.sampled_from(sorted(GPUS)), st.integers(0, 1 << 16)


class Someone:
    """Waits to run a program, then runs it."""

    def __init__(self, world, ticket, host, pool, priority):
        self.world, self.ticket, self.score = world, ticket, ""
        self.program = Program(ticket, f"run: {ticket}", host, pool, priority)
        self.run = None  # the claim under which it runs
        self.is_lost = False
        world.listen(ticket)

    def ask(self):
        """As `Waiter` does; the word."""
        turn = self.world.ledger.attend(self.program, self.score)
        self.score = turn.score or self.score
        if turn.claim and self.start(turn.claim) in STARTED:
            assert self.world.lease(turn.claim.gpu) == turn.claim.token
            assert turn.claim.gpu.startswith(self.program.host)
            self.run = turn.claim
        return turn.word

    def start(self, claim):
        """The same, for what it was given."""
        return self.world.ledger.start(claim, "nonce", self.ticket, acks_late=False, limit=1, stores_result=False)


class ProgramMachine(RuleBasedStateMachine):
    """A test gives `url`."""

    url = ""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(Settings(redis_url=self.url))
        self.world = World(self.ledger)
        self.world.client.flushdb()
        self.numbers = itertools.count(1)
        self.workers, self.tasks, self.waiting, self.running = {}, [], [], []
        self.strangers = set()

    @initialize(served=st.sets(gpus))
    def begin(self, served):
        """All were served once, some are now."""
        for gpu, pools in GPUS.items():
            self.workers[gpu] = self.world.join(gpu, pools)
        for gpu in GPUS.keys() - served:
            self.worker_goes(gpu, "leave")

    # programs

    @rule(host=st.sampled_from(HOSTS), pool=st.sampled_from(POOLS), priority=st.sampled_from([0, 0, 5]))
    def wants(self, host, pool, priority):
        """Somebody comes."""
        someone = Someone(self.world, f"p{next(self.numbers)}", host, pool, priority)
        self.waiting.append(someone)
        self.asks(len(self.waiting) - 1)

    @precondition(lambda self: self.waiting)
    @rule(which=some)
    def asks(self, which):
        """It is woken, or a heartbeat has passed."""
        someone = self.waiting[which % len(self.waiting)]
        word = someone.ask()
        if word in ("ended", "unserved") or someone.run:
            self.waiting.remove(someone)
            self.running += [someone] if someone.run else []

    @precondition(lambda self: self.waiting)
    @rule(which=some, how=st.sampled_from(["dies", "is cut off", "is silent", "is back", "leaves"]))
    def waits_otherwise(self, which, how):
        """Killed it never comes back, cut off it may."""
        someone = self.waiting[which % len(self.waiting)]
        if how in ("dies", "is cut off"):
            self.world.deafen(someone.ticket)
        if how == "is silent":
            self.world.client.hexists(f"gpu:ticket:{someone.ticket}", "state") and self.world.client.hset(
                f"gpu:ticket:{someone.ticket}", "waits_until", 1
            )
        if how == "is back":
            self.world.listen(someone.ticket)
        if how == "leaves":
            self.ledger.cancel(someone.ticket)
        if how in ("dies", "leaves"):
            self.waiting.remove(someone)

    @precondition(lambda self: self.running)
    @rule(which=some, how=st.sampled_from(["renew", "renew", "release", "die", "lapse"]))
    def runs(self, which, how):
        """A run's heartbeat, its end, or its death."""
        someone = self.running[which % len(self.running)]
        if how == "renew":
            answer = self.ledger.renew(someone.run, is_lost=someone.is_lost)
            if answer in KEPT:
                assert not someone.is_lost
                assert self.world.lease(someone.run.gpu) == someone.run.token
            someone.is_lost |= answer not in (*KEPT, "tail")
        elif how == "lapse":
            self.lapses(someone.run.gpu)
        else:
            if how == "release":
                self.ledger.release(someone.run)
            self.running.remove(someone)

    # all others

    @rule(pool=st.sampled_from(POOLS), pin=st.sampled_from(["", "", "node:0"]), priority=st.sampled_from([0, 0, 5]))
    def task(self, pool, pin, priority):
        """Somebody sends a task."""
        self.world.hold(pool=pool, pin=pin, priority=priority)

    @rule(gpu=gpus, what=st.sampled_from(["starts", "ends", "ends"]))
    def task_runs(self, gpu, what):
        """A worker starts what was routed to it, and ends it."""
        if what == "starts" and gpu in self.workers and (claim := self.world.pop(gpu)):
            if self.workers[gpu].start(claim, "nonce") in STARTED:
                self.tasks.append(claim)
        elif what == "ends":
            for claim in [claim for claim in self.tasks if claim.gpu == gpu]:
                self.ledger.release(claim)
                self.tasks.remove(claim)

    @rule(gpu=gpus, how=st.sampled_from(["leave", "die", "come", "come", "report", "bury"]))
    def worker_goes(self, gpu, how):
        """Or comes."""
        worker = self.workers.get(gpu)
        if how == "come" and worker is None:
            self.world.lapse_presence(gpu)
            self.workers[gpu] = self.world.join(gpu, GPUS[gpu])
            self.workers[gpu].claim()
        elif worker is None:
            return
        elif how == "report":
            worker.report(next((claim for claim in self.tasks if claim.gpu == gpu), None))
        elif how in ("leave", "die", "bury"):
            worker.die()
            if how == "leave":
                worker.leave()
            if how == "bury":
                self.ledger.bury(gpu, worker.presence.instance)
            del self.workers[gpu]

    @rule(gpu=gpus, what=st.sampled_from(["drain", "undrain", "force", "takes", "gives", "lapses", "reap", "claim"]))
    def gpu_changes(self, gpu, what):
        """By an operator, a stranger, or time."""
        if what in ("drain", "undrain"):
            self.ledger.drain(gpu, drained=what == "drain")
        elif what == "takes" and self.world.stranger_takes(gpu):
            self.strangers.add(gpu)
        elif what == "gives" and self.world.lease(gpu) == "stranger":
            self.world.delete_lease(gpu)
        elif what == "lapses":
            self.lapses(gpu)
        elif what == "claim" and gpu in self.workers:
            self.workers[gpu].claim()
        elif what in ("force", "reap"):
            getattr(self.ledger, what)(gpu)

    def lapses(self, gpu):
        """The time of its lease is over."""
        self.world.lapse(gpu)
        self.world.end_grace()

    @rule(what=st.sampled_from(["cancel", "bump"]), which=some)
    def order(self, what, which):
        """An operator's, of any ticket."""
        ids = sorted(self.world.client.hget(key, "task_id") for key in self.world.client.scan_iter("gpu:ticket:*"))
        if ids and what == "cancel":
            self.ledger.cancel(ids[which % len(ids)])
        elif ids:
            self.ledger.bump(ids[which % len(ids)], which % 7)

    @rule()
    def reconciles(self):
        """All of it. What a claim of the dead goes back to is a matter of the next look; then nothing is left to do.

        But for a GPU that nobody was told of: that is missed after half a second only.
        """
        for _ in range(3):
            done = list(correct_places(self.ledger, change=True, budget=None))
            done += correct_gpus(self.ledger, change=True, wait=lambda: None)
        assert [str(one) for one in done if one.kind != "missed event"] == []

    # what holds

    @invariant()
    def is_consistent(self):
        """As `doctor` sees it; and no message is a program's."""
        assert inconsistencies(self.ledger) == []
        queued = [one for gpu in GPUS for one in self.world.client.lrange(self.ledger.route_to(gpu), 0, -1)]
        assert not [one for one in queued if '"ticket": "p' in one]

    def teardown(self):
        """Everything comes back or goes, and then all who still wait have their turn."""
        try:
            self._ends_well()
        finally:
            self.world.close()
            self.ledger.client.close()

    def _ends_well(self):
        for gpu in GPUS:
            self.gpu_changes(gpu, "gives")
            self.ledger.drain(gpu, drained=False)
            self.lapses(gpu)
            self.ledger.reap(gpu)
        for someone in self.running:
            self.ledger.release(someone.run)
        for someone in list(self.waiting):
            self.world.listen(someone.ticket)
        for _ in range(200):
            self.running = []
            for someone in list(self.waiting):
                self.asks(self.waiting.index(someone))
            for someone in self.running:
                self.ledger.release(someone.run)
            for gpu in GPUS:
                self.world.quarantine_is_over(gpu)
                self.worker_goes(gpu, "report")
                self.task_runs(gpu, "starts")
                self.task_runs(gpu, "ends")
                self.lapses(gpu)  # what the dead had not started
                self.ledger.reap(gpu)
            if not self.waiting:
                return
        raise AssertionError(
            [self.world.ticket(one.ticket) for one in self.waiting],
            [(gpu, self.world.lease(gpu), self.world.claim_of(gpu), self.world.closed(gpu)) for gpu in GPUS],
        )
