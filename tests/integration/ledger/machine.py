"""Random operations by senders, workers, a reconciler and a stranger, and what must hold after each of them.

Anybody dies between any two steps; any call is made twice with the same arguments, of which the caller hears the second
answer (the first was lost); leases and presences lapse at any moment. A run is never assumed to be the only one: what
was reaped goes on running, renews, sends its retry and releases when it likes, as a partitioned worker does.
"""

import itertools
import json
import sys
from dataclasses import dataclass, field

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_gpulease.ledger import Ledger
from celery_gpulease.ledger.checks import inconsistencies
from celery_gpulease.reconcile.gpus import correct_keys
from celery_gpulease.reconcile.places import correct_places
from celery_gpulease.reconcile.server import correct_server
from celery_gpulease.settings import Settings
from tests.integration.ledger.world import STARTED, World

GPUS = {"node:0": ("default",), "node:1": ("default", "fast"), "GPU-3": ("fast", "default")}
PINS = ("node:0", "node:1", "GPU-3", "node:3")
HOUR_MS = 3_600_000
ARRIVALS = 2**45
LIMIT = 2
WAITING = ("pending", "scheduled")

gpus = st.sampled_from(sorted(GPUS))
some = st.integers(0, 1 << 16)  # picks from what there is by then
repeats = st.sampled_from([False, False, True])


class RepeatingLedger(Ledger):
    """Where `is_reply_lost`, a script runs twice with the same arguments, and its second reply arrives."""

    is_reply_lost = False

    def _call(self, name, **values):
        if self.is_reply_lost:
            super()._call(name, **values)
        return super()._call(name, **values)


#: What a stranger may type: each makes some commands of a ticket's id, its hash and a GPU.
DAMAGES = {
    "its line": lambda ticket, t, _: [("ZREM", f"gpu:pending:{t['pool']}", ticket)],
    "its pinned line": lambda ticket, t, _: [("ZREM", f"gpu:pinned:{t['pin']}", ticket)],
    "another line": lambda ticket, *_: [("ZADD", "gpu:pending:other", 1, ticket)],
    "its place in line": lambda ticket, t, _: [("ZADD", f"gpu:pending:{t['pool']}", "XX", 1, ticket)],
    "the pinned of its pool": lambda ticket, t, _: [("ZREM", f"gpu:pinned_in:{t['pool']}", ticket)],
    "the pinned of its pool, for one that is not": lambda ticket, t, _: [
        ("ZADD", f"gpu:pinned_in:{t['pool']}", "NX", 1, ticket)
    ],
    "the lines": lambda *_: [("DEL", "gpu:lines")],
    "the schedule": lambda ticket, *_: [("ZREM", "gpu:scheduled", ticket)],
    "the schedule, for all": lambda *_: [("DEL", "gpu:scheduled")],
    "the count of the schedule": lambda *_: [("DEL", "gpu:scheduled_count")],
    "the expiring": lambda ticket, *_: [("ZREM", "gpu:expiring", ticket)],
    "the expiring, for one that never expires": lambda ticket, *_: [("ZADD", "gpu:expiring", 10**15, ticket)],
    "the endings": lambda ticket, *_: [("ZREM", "gpu:ending", ticket)],
    "another's endings": lambda ticket, *_: [("ZADD", "gpu:ending", 10**15, ticket)],
    "its task": lambda _, t, __: [("DEL", f"gpu:task:{t['task_id']}")],
    "a line, with one that never was": lambda *_: [("ZADD", "gpu:pending:default", 1, "never")],
    "the claim": lambda _, __, gpu: [("DEL", f"gpu:claim:{gpu}")],
    "the deadlines": lambda _, __, gpu: [("ZREM", "gpu:deadlines", gpu)],
    "the deadlines, for no claim": lambda _, __, gpu: [("ZADD", "gpu:deadlines", "NX", 10**15, gpu)],
    "the registry": lambda _, __, gpu: [("ZREM", "gpu:gpus", gpu), ("ZREM", "gpu:heartbeats", gpu)],
    "the last arrival": lambda *_: [("DEL", "gpu:arrival")],
}


@dataclass
class Task:
    """What a sender was promised."""

    held: object
    arrival: int = 0  # 0: not in a line yet
    deaths: int = 0  # of its runs, counted
    is_superseded: bool = False
    is_bumped: bool = False  # in this step
    priority: int = 0
    last_run: str = ""  # the token that started last, while that run may come back
    has_run: bool = False  # a run of it may have stored its end
    runs: int = 0


@dataclass
class Run:
    """A task's body under way, wherever it thinks it is."""

    claim: object
    nonce: str
    holder: str = ""  # the instance that started it
    is_lost: bool = False  # it was told so


@dataclass
class Picture:
    """What the ledger says, as far as the rules need it."""

    tickets: dict
    claims: dict
    leases: dict
    ended: set
    quarantined: set
    lines: dict = field(default_factory=dict)


class LedgerMachine(RuleBasedStateMachine):
    """The ledger against a model that knows the promises, not the scripts. A test gives `url` and `scripts`."""

    url = ""
    scripts: dict = {}  # noqa: RUF012  name → text: mutations

    def __init__(self):
        super().__init__()
        self.ledger = RepeatingLedger(Settings(redis_url=self.url))
        self.world = World(self.ledger)
        self.client = self.ledger.client
        self.client.flushdb()
        for name, text in self.scripts.items():
            self.ledger._scripts[name] = self.client.register_script(text)
        self.numbers = itertools.count(1)
        self.arrivals = itertools.count(1)
        self.tasks = {}  # ticket → Task
        self.workers = {}  # gpu → the worker that lives
        self.claims = []  # every claim that anybody ever popped
        self.runs = []  # Run, also of workers that were taken for dead
        self.over = []  # Run: released, given back or killed; its late messages may still come
        self.started = {}  # token → the nonce that may run under it
        self.holders = {}  # token → the instance that started it
        self.killed = set()  # instances
        self.fences = dict.fromkeys(GPUS, 0)
        self.tokens = set()
        self.strangers = {}  # gpu → its lease
        self.wanted, self.drained, self.closing = set(), set(), set()
        self.is_outage = False
        self.may_end, self.must_end = set(), set()  # tickets, in this step
        for gpu in GPUS:
            self._join(gpu)
        self.before = self._picture()

    # the rules: few, so that Hypothesis chooses what moves tasks as often as what disturbs them

    @initialize(count=st.integers(1, 6), pools=st.lists(st.sampled_from(["default", "fast"]), min_size=6, max_size=6))
    def begin(self, count, pools):
        """Some wait already."""
        for pool in pools[:count]:
            self.hold(pool, "", 0, is_later=False, expires=False, is_reply_lost=False)

    @rule(
        what=st.sampled_from(
            [
                "lease_lapses",
                "lease_is_deleted_by_hand",
                "presence_lapses",
                "comes_due",
                "expires",
                "half_a_minute",
                "outage",
                "grace",
            ]
        ),
        gpu=gpus,
        which=some,
    )
    def time_passes(self, what, gpu, which):
        """Any deadline, at any moment."""
        {
            "lease_lapses": lambda: self.lease_lapses(gpu),
            "lease_is_deleted_by_hand": lambda: self.lease_is_deleted_by_hand(gpu),
            "presence_lapses": lambda: self.presence_lapses(gpu),
            "comes_due": lambda: self.comes_due(which, promotes=bool(which % 3)),
            "expires": lambda: self.expires(which),
            "half_a_minute": lambda: self.half_a_minute(gpu),
            "outage": self.outage,
            "grace": self.grace_ends,
        }[what]()

    @rule(what=st.sampled_from(["takes", "takes_what_lapsed", "goes", "wants", "wants_no_more"]), gpu=gpus)
    def stranger(self, what, gpu):
        """A program that knows the contract."""
        {
            "takes": lambda: self.stranger_takes(gpu),
            "takes_what_lapsed": lambda: self.lease_lapses_and_a_stranger_takes(gpu),
            "goes": lambda: self.stranger_goes(gpu),
            "wants": lambda: self.stranger_wants(gpu, wants=True),
            "wants_no_more": lambda: self.stranger_wants(gpu, wants=False),
        }[what]()

    @rule(
        what=st.sampled_from(
            ["drain", "undrain", "close", "leave", "die", "is_cut_off", "second_worker", "successor", "neighbour"]
        ),
        gpu=gpus,
        is_reply_lost=repeats,
    )
    def worker_changes(self, what, gpu, is_reply_lost):
        """A worker, or an operator."""
        {
            "drain": lambda: self.drain(gpu, is_drained=True, is_reply_lost=is_reply_lost),
            "undrain": lambda: self.drain(gpu, is_drained=False, is_reply_lost=is_reply_lost),
            "close": lambda: self.close(gpu, is_reply_lost),
            "leave": lambda: self.leave(gpu, is_reply_lost),
            "die": lambda: self.die(gpu, with_runs=True),
            "is_cut_off": lambda: self.die(gpu, with_runs=False),
            "second_worker": lambda: self.join(gpu, is_reply_lost),
            "successor": lambda: self.succeed(gpu, is_reply_lost),
            "neighbour": lambda: self.bury(gpu, is_reply_lost),
        }[what]()

    @precondition(
        lambda self: len(self.workers) < len(GPUS) or self.drained | self.closing | self.wanted | self.strangers.keys()
    )
    @rule(gpu=gpus, is_reply_lost=repeats)
    def comes_back(self, gpu, is_reply_lost):
        """A worker that was away starts again, and nothing hinders it."""
        if gpu not in self.workers or gpu in self.closing:
            self.workers.pop(gpu, None)
            self.world.deafen(gpu)
            self.presence_lapses(gpu)
            self.join(gpu, is_reply_lost)
        self.stranger_goes(gpu)
        self.stranger_wants(gpu, wants=False)
        self.world.quarantine_is_over(gpu)
        self.report(gpu, is_reply_lost)
        self.before = self._check()
        self.drain(gpu, is_drained=False, is_reply_lost=False)

    @rule(
        what=st.sampled_from(
            ["promote", "agenda", "end", "end_dies", "reconcile", "report", "reap", "claim", "pop", "old_hold"]
        ),
        gpu=gpus,
        which=some,
        is_reply_lost=repeats,
    )
    def look_after(self, what, gpu, which, is_reply_lost):
        """Any listener, heartbeat or reconciler."""
        {
            "promote": lambda: self.promote(is_reply_lost),
            "agenda": self.agenda,
            "end": lambda: self.end(is_reply_lost, dies_first=False),
            "end_dies": lambda: self.end(is_reply_lost, dies_first=True),
            "reconcile": lambda: self.reconcile(gpu, is_reply_lost, dies=which % 4 == 1),
            "report": lambda: self.report(gpu, is_reply_lost),
            "reap": lambda: self.reap(gpu, is_reply_lost),
            "claim": lambda: self.claim(gpu, is_reply_lost),
            "pop": lambda: self.pop(gpu),
            "old_hold": lambda: self.send_again_what_was_sent_long_ago(which),
        }[what]()

    @rule(
        what=st.sampled_from(["cancel", "cancel", "bump", "force", "forget"]),
        gpu=gpus,
        which=some,
        is_reply_lost=repeats,
    )
    def operator(self, what, gpu, which, is_reply_lost):
        """A person at the command line."""
        {
            "cancel": lambda: self.cancel(which, is_reply_lost, dies=which % 3 == 0),
            "bump": lambda: self.bump(which, is_reply_lost),
            "force": lambda: self.force(gpu, is_reply_lost),
            "forget": lambda: self.forget(gpu, is_cut_off=which % 4 > 0),
        }[what]()

    @precondition(lambda self: self.before.tickets)
    @rule(what=st.sampled_from(sorted(DAMAGES)), which=some, gpu=gpus)
    def is_damaged_and_reconciled(self, what, which, gpu):
        """Somebody types a command that no operation of ours gives; a reconciliation puts it right."""
        self.ledger.is_reply_lost = False
        ticket = self._pick(sorted(self.before.tickets), which)
        t, gpu = self.before.tickets[ticket], self._busy(gpu)
        if what == "the claim" and self.before.claims.get(gpu, {}).get("token") != self.before.leases.get(gpu, ""):
            return  # what has neither claim nor lease goes back, as if it had died: see test_reconcile.py
        for command in DAMAGES[what](ticket, t, gpu):
            self.client.execute_command(*command)
        wrong = inconsistencies(self.ledger)
        parts = (
            correct_server(self.ledger, change=True),
            correct_places(self.ledger, change=True, budget=None),
            *(correct_keys(self.ledger, one, change=True) for one in GPUS),
        )
        done = [one for part in parts for one in part if one.is_corrected]
        note(f"  {wrong}: {[str(one) for one in done]}")
        assert done or not wrong
        self.client.zrem(self.world.key("ended"), "never")

    @precondition(lambda self: self.runs)
    @rule(
        which=some,
        how=st.sampled_from(["lapses", "lapses", "is deleted", "is forced"]),
        then=st.sampled_from(["", "stranger", "serve"]),
    )
    def is_taken_for_dead(self, which, how, then):
        """A run's lease is gone, somebody reaps it, and then it says that it lives."""
        run = self._pick(self.runs, which)
        gpu = run.claim.gpu
        if how == "is deleted":
            self.lease_is_deleted_by_hand(gpu)
        if how == "is forced":
            self.force(gpu, is_reply_lost=False)
        if how != "is deleted":
            self.world.lapse(gpu)
        self.before = self._check()
        self.reap(gpu, is_reply_lost=False)
        self.before = self._check()
        if then == "stranger":
            self.stranger_takes(gpu)
        elif then == "serve":
            for other in GPUS:
                self.before = self._check()
                self.serve(other, acks_late=True, is_reply_lost=False)
        self.before = self._check()
        if run in self.runs:
            self.renew(self.runs.index(run), is_reply_lost=False)

    @precondition(lambda self: self.runs or self.claims)
    @rule(
        what=st.sampled_from(
            ["retry", "retry", "requeued", "child_killed", "released_late", "gpu_given_back", "deferred"]
        ),
        which=some,
        is_reply_lost=repeats,
    )
    def goes_otherwise(self, what, which, is_reply_lost):
        """A run, or a claim, that does not simply end."""
        {
            "retry": lambda: self.retry(which, is_reply_lost),
            "requeued": lambda: self.requeue(which, counted=False, is_reply_lost=is_reply_lost),
            "child_killed": lambda: self.requeue(which, counted=True, is_reply_lost=is_reply_lost),
            "released_late": lambda: self.release_late(which),
            "gpu_given_back": lambda: self.give_back(which, is_reply_lost),
            "deferred": lambda: self.defer(which, is_reply_lost),
        }[what]()

    # senders

    @rule(
        pool=st.sampled_from(["default", "fast"]),
        pin=st.sampled_from(["", "", "", *PINS]),
        priority=st.sampled_from([0, 0, 9]),
        is_later=st.sampled_from([False, False, True]),
        expires=st.booleans(),
        is_reply_lost=repeats,
    )
    def hold(self, pool, pin, priority, is_later, expires, is_reply_lost):
        """A sender; it may die right after the call."""
        number = next(self.numbers)
        far = self.world.now_ms() + HOUR_MS
        held = self.world.held(
            ticket=f"t{number}",
            task_id=f"task{number}",
            pool=pool,
            pin=pin,
            priority=priority,
            eta_ms=far + number if is_later else 0,
            expires_ms=far if expires else 0,
        )
        self._hold(held, is_reply_lost)
        assert held.ticket in self.tasks

    def _hold(self, held, is_reply_lost):
        self.ledger.is_reply_lost = is_reply_lost
        answer = self.ledger.hold(held)
        self.ledger.is_reply_lost = False
        note(f"  {held.ticket}: {answer}")
        if answer != "lost":
            self.tasks[held.ticket] = Task(held, priority=held.priority)
        return answer

    def send_again_what_was_sent_long_ago(self, which):
        """The network delivers an old HOLD once more."""
        if not self.tasks:
            return
        ended = [ticket for ticket in self.tasks if ticket in self.before.ended]
        task = self.tasks[self._pick(ended if ended and which % 2 == 0 else list(self.tasks), which // 2)]
        before = self.world.everything()
        assert self.ledger.hold(task.held) == "known"
        assert self.world.everything() == before

    def retry(self, which, is_reply_lost):
        """A run sends the task again in its own place."""
        if not self.runs:
            return
        run = self._pick(self.runs, which)
        t = self.before.tickets.get(run.claim.ticket, {})
        is_current = t.get("token") == run.claim.token and t["state"] in ("started", "tail")
        old = self.tasks[run.claim.ticket].held
        held = self.world.held(ticket=f"t{next(self.numbers)}", task_id=old.task_id, pool=old.pool, run=run.claim)
        answer = self._hold(held, is_reply_lost)
        if is_current:
            assert answer != "lost"
            self.tasks[run.claim.ticket].is_superseded = True
        else:
            assert answer == "lost"
            assert held.ticket not in self._picture().tickets
            self._tell_lost(run)

    # workers

    def _join(self, gpu, dead=""):
        worker = self.world.worker(gpu, GPUS[gpu])
        answer = worker.join(dead)
        if answer == ["joined"]:
            self.workers[gpu] = worker
            self.closing.discard(gpu)
        return answer

    def join(self, gpu, is_reply_lost, dead=""):
        """A worker starts: refused while another is present, unless that one is known to be dead."""
        was_present = self._present(gpu) is not None
        claim = self.before.claims.get(gpu, {})
        is_left = bool(claim) and (self._is_of(claim, dead) if dead else claim["state"] == "tail" and not was_present)
        if is_left:
            self._is_taken_up(claim)
        self.ledger.is_reply_lost = is_reply_lost
        answer = self._join(gpu, dead)
        self.ledger.is_reply_lost = False
        assert (answer[0] == "in_use") == (was_present and not dead)
        if answer == ["joined"]:  # it set the pulse
            self.is_outage = self._has_grace()
        assert self._picture().claims.get(gpu, {}) == ({} if is_left else claim)

    def succeed(self, gpu, is_reply_lost):
        """`kill -9`, now or before, and a worker starts that sees it; of one that was cut off it sees nothing."""
        self.die(gpu, with_runs=True)
        dead = self._present(gpu)
        if dead in self.killed:
            self.join(gpu, is_reply_lost, dead)

    def bury(self, gpu, is_reply_lost):
        """`kill -9`, now or before, and a neighbour sees it."""
        self.die(gpu, with_runs=True)
        dead = self._present(gpu)
        if dead not in self.killed:
            return
        claim = self.before.claims.get(gpu, {})
        is_left = bool(claim) and self._is_of(claim, dead)
        if is_left:
            self._is_taken_up(claim)
        self.ledger.is_reply_lost = is_reply_lost
        answer = self.ledger.bury(gpu, dead)
        self.ledger.is_reply_lost = False
        assert answer != is_reply_lost  # the second time nobody is left to bury
        assert self._present(gpu) is None
        assert self._picture().claims.get(gpu, {}) == ({} if is_left else claim)

    def _present(self, gpu):
        presence = self.client.get(self.world.key("worker", gpu))
        return json.loads(presence)["instance"] if presence else None

    def _is_of(self, claim, instance):
        return claim["state"] != "started" or self.holders[claim["token"]] == instance

    def _is_taken_up(self, claim):
        task = self.tasks[claim["ticket"]]
        if task.is_superseded:
            self.may_end.add(claim["ticket"])
            self.must_end.add(claim["ticket"])
        elif claim["state"] != "claimed":
            task.deaths += 1
        if claim["state"] == "tail" and self.before.tickets[claim["ticket"]]["why"] == "forced":
            task.last_run = ""

    def claim(self, gpu, is_reply_lost):
        """A living worker asks for work."""
        if gpu in self.workers:
            self.ledger.is_reply_lost = is_reply_lost
            note(f"  {self.ledger.claim(gpu)}")

    def pop(self, gpu):
        """A message leaves the queue; its worker may die before START, and it is never seen again."""
        if gpu in self.workers:
            self._pop(gpu)

    def _pop(self, gpu):
        if claim := self.world.pop(gpu):
            assert claim.gpu == gpu
            self.claims.append(claim)
        return claim

    @rule(
        gpu=gpus,
        acks_late=st.sampled_from([True, True, True, False]),
        meets=st.sampled_from(["", "", "", "", "a rate limit", "a stranger"]),
        is_reply_lost=repeats,
    )
    def serve(self, gpu, acks_late, is_reply_lost, *, meets=""):
        """What a worker does, mostly when all is well."""
        if gpu not in self.workers:
            return
        self.claim(gpu, is_reply_lost)
        self.before = self._check()
        if not (claim := self._pop(gpu)):
            return
        if meets == "a rate limit":
            self._defer(claim, is_reply_lost)
            return
        if meets == "a stranger":
            self.lease_lapses_and_a_stranger_takes(gpu)
            self.before = self._check()
        self._start(claim, acks_late, is_reply_lost)

    @precondition(lambda self: self.claims)
    @rule(which=some, acks_late=st.booleans(), is_reply_lost=repeats)
    def start(self, which, acks_late, is_reply_lost):
        """Any message that was ever popped, also one that was routed twice, or is long stale."""
        self._start(self._pick(self.claims, which), acks_late, is_reply_lost)

    def _start(self, claim, acks_late, is_reply_lost):
        t, lease = self.before.tickets.get(claim.ticket, {}), self.before.leases.get(claim.gpu)
        nonce = f"n{next(self.numbers)}"
        worker = self.workers.get(claim.gpu)
        holder = worker.presence.instance if worker else "cut off"
        self.ledger.is_reply_lost = is_reply_lost
        answer = self.ledger.start(claim, nonce, holder, acks_late=acks_late, limit=LIMIT, stores_result=True)
        self.ledger.is_reply_lost = False
        note(f"  {claim.ticket} on {claim.gpu}: {answer}")
        is_mine = t.get("state") == "claimed" and t["token"] == claim.token
        if is_mine and lease in (None, claim.token):
            task = self.tasks[claim.ticket]
            assert answer == ("again" if task.has_run else "rerun" if task.runs else "run")
        elif is_mine:
            assert answer == ("stale" if is_reply_lost else "foreign")
        else:
            assert answer in ("stale", "twice")
        if answer in STARTED:
            assert self.started.setdefault(claim.token, nonce) == nonce, "two requests run under one claim"
            assert not self.tasks[claim.ticket].is_superseded
            assert self.world.lease(claim.gpu) == claim.token
            self.runs.append(Run(claim, nonce, holder))
            self.holders[claim.token] = holder
            self.tasks[claim.ticket].last_run = claim.token
            self.tasks[claim.ticket].has_run = True
            self.tasks[claim.ticket].runs += 1

    @precondition(lambda self: self.runs + self.over)
    @rule(which=some, is_reply_lost=repeats)
    def renew(self, which, is_reply_lost):
        """A heartbeat, also one that was under way when its run ended."""
        run = self._pick(self.runs + self.over, which)
        expected = self._table_of_renew(run)
        self.ledger.is_reply_lost = is_reply_lost
        answer = self.ledger.renew(run.claim)
        self.ledger.is_reply_lost = False
        note(f"  {run.claim.ticket} on {run.claim.gpu}: {answer}, expected {expected}")
        assert answer == ("renewed" if is_reply_lost and expected == "regained" else expected)
        if expected in ("renewed", "regained"):
            assert self.world.lease(run.claim.gpu) == run.claim.token
            assert self.world.lease_ms(run.claim.gpu) > 25_000
        if expected == "regained" and self.before.tickets[run.claim.ticket].get("token") != run.claim.token:
            self.tasks[run.claim.ticket].deaths -= 1
        if expected == "lost":
            self._tell_lost(run)

    def _table_of_renew(self, run):
        """What RENEW answers, by what was there before; test_renew.py has its rows."""
        claim = run.claim
        t, lease = self.before.tickets.get(claim.ticket), self.before.leases.get(claim.gpu)
        there = self.before.claims.get(claim.gpu, {})
        if t is None:
            return "ended"
        is_current = t.get("token") == claim.token
        if is_current and t["state"] == "tail":
            return {"forced": "lost", "robbed": "robbed"}.get(t["why"], "tail")
        if is_current and lease == claim.token:
            return "renewed"
        is_unstarted = (
            there.get("state") == "claimed" and there["token"] != claim.token and lease in (None, there["token"])
        )
        is_open = (lease is None and there.get("token") in (None, claim.token)) or is_unstarted
        if is_current:
            return "regained" if is_open else "robbed"
        is_waiting = t["state"] in ("pending", "scheduled", "claimed")
        was_reaped = self.tasks[claim.ticket].last_run == claim.token and is_waiting
        return "regained" if was_reaped and is_open else "lost"

    @precondition(lambda self: self.runs)
    @rule(which=some, is_reply_lost=repeats)
    def release(self, which, is_reply_lost):
        """A run is done."""
        run = self._pick(self.runs, which)
        self._release(run, is_reply_lost)
        self.runs.remove(run)
        self.over.append(run)

    def release_late(self, which):
        """The child of a run that main has given back, or a RELEASE that arrives once more."""
        if self.over:
            self._release(self._pick(self.over, which), is_reply_lost=False)

    def _release(self, run, is_reply_lost):
        ticket = run.claim.ticket
        t = self.before.tickets.get(ticket)
        counts = t is not None and (t.get("token") == run.claim.token or self.tasks[ticket].last_run == run.claim.token)
        self.ledger.is_reply_lost = is_reply_lost
        answer = self.ledger.release(run.claim)
        self.ledger.is_reply_lost = False
        note(f"  {ticket} on {run.claim.gpu}: {answer}")
        if counts:
            self.may_end.add(ticket)
            self.must_end.add(ticket)
            assert answer == ("ended" if is_reply_lost else "released")
            if is_reply_lost:  # such a network delivers its HOLD once more, too
                assert self.ledger.hold(self.tasks[ticket].held) == "known"
        else:
            assert answer in ("ended", "lost")

    def requeue(self, which, counted, is_reply_lost):
        """Main gives back what its child did not end, or what it never started."""
        run = self._pick(self.runs + [Run(claim, "") for claim in self.claims], which)
        t = self.before.tickets.get(run.claim.ticket, {})
        is_current = t.get("token") == run.claim.token
        if is_current and run.nonce == "" and t["state"] != "claimed":
            return  # it knows that it started
        task = self.tasks[run.claim.ticket]
        if is_current and task.is_superseded:
            self.may_end.add(run.claim.ticket)
            self.must_end.add(run.claim.ticket)
        elif is_current and t["state"] != "claimed" and counted:
            task.deaths += 1
        if is_current and t["state"] != "claimed":
            task.last_run = ""
            task.has_run = counted  # else the task asked for it
        self.ledger.is_reply_lost = is_reply_lost
        answer = self.ledger.requeue(run.claim, "test", counted=counted, wanted=not counted)
        note(f"  {run.claim.ticket}: {answer}")
        self._forget(run)

    def give_back(self, which, is_reply_lost):
        """A run goes on without its GPU."""
        if not self.runs:
            return
        claim = self._pick(self.runs, which).claim
        t = self.before.tickets.get(claim.ticket, {})
        is_current = t.get("token") == claim.token and t["state"] in ("started", "tail")
        self.ledger.is_reply_lost = is_reply_lost
        assert self.ledger.give_back(claim) == ("tail" if is_current else "stale")
        assert not is_current or self.world.lease(claim.gpu) != claim.token

    def defer(self, which, is_reply_lost):
        """A rate limit meets any message that was ever popped, most of them long stale."""
        if self.claims:
            self._defer(self._pick(self.claims, which), is_reply_lost)

    def _defer(self, claim, is_reply_lost):
        t = self.before.tickets.get(claim.ticket, {})
        is_mine = t.get("state") == "claimed" and t["token"] == claim.token
        self.ledger.is_reply_lost = is_reply_lost
        answer = self.ledger.defer(claim, HOUR_MS / 1000)
        note(f"  {claim.ticket}: {answer}")
        assert answer == ("scheduled" if is_mine and not is_reply_lost else "stale")
        assert not is_mine or self.world.state(claim.ticket) == "scheduled"

    def report(self, gpu, is_reply_lost):
        """A heartbeat; an idle worker has what it never got routed once more."""
        if worker := self.workers.get(gpu):
            token = self.before.claims.get(gpu, {}).get("token")
            running = next((run for run in self.runs if run.claim.token == token), None)
            self.ledger.is_reply_lost = is_reply_lost
            if running is None or not self._beats_as_usual(worker, running):
                answer = worker.report(running and running.claim)
                assert answer in ("present", "closing", "rerouted")
            self.is_outage = self._has_grace()

    def _beats_as_usual(self, worker, run):
        """Where RENEW would find nothing to take back, and presence is there."""
        is_present = self.client.exists(self.world.key("worker", worker.gpu))
        is_usual = bool(is_present) and self._table_of_renew(run) == "renewed"
        assert worker.beat(run.claim) == ("unusual" if not is_usual else self._word_of(worker.gpu))
        return is_usual

    def _word_of(self, gpu):
        return "closing" if self.client.hexists(self.world.key("closed", gpu), "closing") else "present"

    def close(self, gpu, is_reply_lost):
        """The worker is asked to stop."""
        if worker := self.workers.get(gpu):
            self.ledger.is_reply_lost = is_reply_lost
            worker.close()
            self.closing.add(gpu)

    def leave(self, gpu, is_reply_lost):
        """The worker has stopped; what still ran was stopped with it."""
        worker = self.workers.pop(gpu, None)
        if worker is None:
            return
        if ticket := self.before.claims.get(gpu, {}).get("ticket"):
            task, t = self.tasks[ticket], self.before.tickets[ticket]
            if t["state"] != "claimed":
                task.last_run = ""
            if task.is_superseded:
                self.may_end.add(ticket)
                self.must_end.add(ticket)
            elif t["state"] != "claimed" and t.get("acks_late") == "0":
                task.deaths += 1
        self.ledger.is_reply_lost = is_reply_lost
        worker.leave()
        worker.die()
        self.closing.add(gpu)
        for run in [run for run in self.runs if run.claim.gpu == gpu]:
            self._forget(run)

    def die(self, gpu, with_runs):
        """`kill -9`, with what it runs; or the network is cut, and its runs go on where nobody sees them."""
        if worker := self.workers.pop(gpu, None):
            worker.die()
            if with_runs:
                self.killed.add(worker.presence.instance)
                self.runs = [run for run in self.runs if run.holder != worker.presence.instance]

    def presence_lapses(self, gpu):
        """Nobody has heard of the worker for a ttl; it may live."""
        if gpu not in self.workers:
            self.world.lapse_presence(gpu)

    def lease_lapses(self, gpu):
        """Its time is over, whatever its holder does."""
        self.world.lapse(self._busy(gpu))

    def lease_is_deleted_by_hand(self, gpu):
        """Somebody types DEL."""
        if (gpu := self._busy(gpu)) not in self.strangers:
            self.world.delete_lease(gpu)

    # whoever looks after others

    @rule(gpu=gpus, is_reply_lost=repeats)
    def lease_lapses_and_is_reaped(self, gpu, is_reply_lost):
        """The usual order."""
        gpu = self._busy(gpu)
        self.world.lapse(gpu)
        self.before = self._check()
        self.reap(gpu, is_reply_lost)

    def reap(self, gpu, is_reply_lost):
        """Any listener, or the reconciler."""
        gpu = self._busy(gpu)
        claim = self.before.claims.get(gpu, {})
        lease, now = self.before.leases.get(gpu), self.world.now_ms()
        deadline = self.client.zscore(self.world.key("deadlines"), gpu) or 0
        is_dead = bool(claim) and lease != claim["token"] and deadline <= now
        if claim.get("state") in ("started", "tail") and self.is_outage:
            is_dead = False
        is_suspect = claim.get("state") == "claimed" and gpu in self.workers and not self.is_outage
        is_suspect &= bool(self.client.exists(self.world.key("worker", gpu)))
        if is_dead:
            self._is_taken_up(claim)
        self.ledger.is_reply_lost = is_reply_lost
        answer = self.ledger.reap(gpu)
        self.ledger.is_reply_lost = False
        note(f"  {claim.get('ticket')}: {answer}")
        if is_dead and not is_reply_lost:
            assert answer == "reaped"
            is_quarantined = gpu in self._picture().quarantined
            if self.world.state(claim["ticket"]) != "ending":
                assert is_quarantined == (is_suspect or gpu in self.before.quarantined)
            assert is_suspect or not is_quarantined or gpu in self.before.quarantined
        if not is_dead:
            assert answer != "reaped"
            assert self._picture().claims.get(gpu, {}) == claim

    def promote(self, is_reply_lost):
        """Any listener."""
        self.ledger.is_reply_lost = is_reply_lost
        self.ledger.promote()

    def agenda(self):
        """It names who is to be reaped."""
        lapsed = self.ledger.agenda().lapsed
        assert set(lapsed) <= self.before.claims.keys()

    def end(self, is_reply_lost, dies_first):
        """A worker writes an end outside Redis, unless it dies between the two steps."""
        self.ledger.is_reply_lost = is_reply_lost
        ending = self.ledger.end()
        if ending is not None and not dies_first:
            self.may_end.add(ending.ticket)
            self.must_end.add(ending.ticket)
            self.ledger.finish(ending.ticket)

    def half_a_minute(self, gpu):
        """Passes."""
        self.ends_are_tried_again()
        self.world.quarantine_is_over(gpu)

    def ends_are_tried_again(self):
        """Half a minute has passed."""
        for ticket in self.client.zrange(self.world.key("ending"), 0, -1):
            self.client.zadd(self.world.key("ending"), {ticket: 1000})
            self.client.hset(self.world.key("ticket", ticket), "attempts", 0)

    def comes_due(self, which, promotes):
        """Time passes for one that is scheduled."""
        if waiting := self.client.zrange(self.world.key("scheduled"), 0, -1):
            self.world.make_due(self._pick(waiting, which), 1000 + next(self.numbers))
            if promotes:
                self.before = self._check()
                self.ledger.promote()

    def expires(self, which):
        """Time passes for one that waits."""
        if waiting := self.client.zrange(self.world.key("expiring"), 0, -1):
            self.world.make_expired(self._pick(waiting, which))

    def drain(self, gpu, is_drained, is_reply_lost):
        """An operator."""
        self.ledger.is_reply_lost = is_reply_lost
        self.ledger.drain(gpu, drained=is_drained)
        assert not is_drained or self.world.claim_of(gpu).get("state") != "claimed"
        (self.drained.add if is_drained else self.drained.discard)(gpu)

    def cancel(self, which, is_reply_lost, dies):
        """What is held of a task ends, written by the canceller unless it dies; what runs goes on."""
        if not self.before.tickets:
            return
        task_id = self._pick(list(self.before.tickets.values()), which)["task_id"]
        mine = {ticket: t for ticket, t in self.before.tickets.items() if t["task_id"] == task_id}
        held = {ticket for ticket, t in mine.items() if t["state"] in ("pending", "scheduled", "claimed")}
        again = {ticket for ticket, t in mine.items() if (t["state"], t.get("why")) == ("ending", "cancelled")}
        self.ledger.is_reply_lost = is_reply_lost
        found = self.ledger.cancel(task_id)
        self.ledger.is_reply_lost = False
        note(f"  {task_id}: {found}")
        taken = {one.ticket for one in found.taken}
        assert taken == held | again
        assert sorted(found.running_on) == sorted(t["gpu"] for t in mine.values() if t["state"] in ("started", "tail"))
        self.may_end |= again
        for ticket in held:
            self.tasks[ticket].last_run = ""
        if not dies:
            self.may_end |= taken
            self.must_end |= taken
            for ticket in taken:
                assert self.ledger.finish(ticket) == "ended"

    def bump(self, which, is_reply_lost):
        """What waits stands elsewhere in its line."""
        if not self.before.tickets:
            return
        ticket = self._pick(list(self.before.tickets), which)
        task_id, priority = self.tasks[ticket].held.task_id, (0, 9, 255)[which % 3]
        waiting = [
            one
            for one, t in self.before.tickets.items()
            if t["task_id"] == task_id and t["state"] in ("pending", "scheduled")
        ]
        self.ledger.is_reply_lost = is_reply_lost
        found = self.ledger.bump(task_id, priority)
        note(f"  {task_id} to {priority}: {found}")
        assert (len(found.places), found.word == "bumped") == (len(waiting), bool(waiting))
        for one in waiting:
            self.tasks[one].priority, self.tasks[one].is_bumped = priority, True

    def force(self, gpu, is_reply_lost):
        """A lease is taken away, whoever has it."""
        gpu = self._busy(gpu)
        claim, lease = self.before.claims.get(gpu, {}), self.before.leases.get(gpu)
        is_foreign = lease is not None and lease != claim.get("token")
        self.ledger.is_reply_lost = is_reply_lost
        found = self.ledger.force(gpu)
        self.ledger.is_reply_lost = False
        note(f"  {gpu}: {found}")
        if not self.client.exists(self.world.key("device", gpu)):  # it was removed: no name of it is known any more
            assert found.word == "unknown"
            return
        if is_foreign:
            assert self.strangers.pop(gpu, None) == lease
        if not is_reply_lost:
            assert (found.word == "foreign") == is_foreign
        if not is_foreign and claim.get("state") == "started":
            assert found.word == "started"
            assert self.world.lease(gpu) is None

    def forget(self, gpu, is_cut_off):
        """It is believed to be gone for good; what runs there may come back all the same."""
        if is_cut_off:
            self.die(gpu, with_runs=False)
            self.presence_lapses(gpu)
        is_served, claim = self._present(gpu) is not None, self.before.claims.get(gpu)
        word = self.ledger.forget(gpu).word
        note(f"  {word}")
        if word != "unknown":
            assert is_served == (word == "served")
            assert is_served or (claim is not None) == (word == "busy")
        if word == "removed":
            assert gpu not in self.strangers
            assert not [t for t in self.before.tickets.values() if t["pin"] == gpu and t["state"] in WAITING]
            self.drained.discard(gpu)
            self.closing.discard(gpu)

    def reconcile(self, gpu, is_reply_lost, dies):
        """One at a time: the index of free GPUs is put right, and what was forgotten is dispatched."""
        who, key = f"reconciler of {gpu}", self.world.key("turn", "reconcile")
        is_mine = self.client.get(key) in (None, who)
        self.ledger.is_reply_lost = is_reply_lost
        assert self.ledger.take_turn(who) == is_mine
        if not is_mine:  # a minute passes
            self.client.delete(key)
            return
        self.ledger.is_reply_lost = False
        self._correct(gpu)
        self.ledger.is_reply_lost = is_reply_lost
        if not dies:
            self.ledger.end_turn(who)
            assert self.client.get(key) is None

    def _correct(self, gpu):
        self.ledger.inspect(gpu, change=True)
        _, alive, claimable, astray, *_ = self.ledger.inspect(gpu, change=False)
        assert not astray
        assert bool(alive) == (gpu in self.workers and bool(self.client.exists(self.world.key("worker", gpu))))
        assert not (claimable and gpu in self.before.claims)
        answer = self.ledger.dispatch(gpu)
        note(f"  {answer}")
        assert (answer == "closed") == (not claimable)
        now = self._picture()
        assert (answer == "claimed") == (claimable and gpu in now.claims)
        if answer == "idle":
            waiting = [ticket for ticket, t in now.tickets.items() if t["state"] == "pending"]
            assert not [ticket for ticket in waiting if self._place(gpu, ticket) is not None]

    def outage(self):
        """Nobody reached the server for long."""
        self.world.outage()
        self.is_outage = True

    def grace_ends(self):
        """A heartbeat later."""
        self.world.end_grace()
        self.is_outage = False

    # a stranger

    def stranger_takes(self, gpu):
        """`SET NX PX`."""
        if self.world.stranger_takes(gpu):
            self.strangers[gpu] = "stranger"

    def lease_lapses_and_a_stranger_takes(self, gpu):
        """The worst moment."""
        gpu = self._busy(gpu)
        self.world.lapse(gpu)
        self.stranger_takes(gpu)

    def stranger_goes(self, gpu):
        """`DEL`, or its time is over."""
        if self.strangers.pop(gpu, None):
            self.world.delete_lease(gpu)

    def stranger_wants(self, gpu, wants):
        """It leaves a wish, or takes it back."""
        (self.world.want if wants else self.world.unwant)(gpu)
        (self.wanted.add if wants else self.wanted.discard)(gpu)

    # what always holds

    @invariant()
    def all_is_well(self):
        """After every step."""
        self.before = self._check()

    def _check(self):
        self.ledger.is_reply_lost = False
        if not self.is_outage:  # a slow machine is no outage
            self.client.hset(self.world.key("pulse"), "at", self.world.now_ms())
        found = inconsistencies(self.ledger)
        assert not found, found
        before, now = self.before, self._picture()
        self._nothing_vanishes(before, now)
        self._arrivals(before, now)
        self._claims(before, now)
        self._deliveries(now)
        for gpu, lease in self.strangers.items():
            assert now.leases.get(gpu) == lease, f"{gpu}: the stranger's lease is gone"
        self.may_end, self.must_end = set(), set()
        return now

    def _nothing_vanishes(self, before, now):
        assert now.tickets.keys() | now.ended == self.tasks.keys()
        assert now.ended - before.ended <= self.may_end
        assert self.must_end <= now.ended
        for ticket, t in now.tickets.items():
            if self.tasks[ticket].is_superseded:
                assert t["state"] in ("started", "tail"), f"{ticket} would run again after its retry"

    def _arrivals(self, before, now):
        def came_in(ticket):
            return "score" in now.tickets.get(ticket, {}) or ticket in now.ended

        for ticket in now.tickets.keys() & before.tickets.keys():
            score, task = before.tickets[ticket].get("score"), self.tasks[ticket]
            if task.is_bumped and score is not None:
                score = str(task.priority * ARRIVALS + int(score) % ARRIVALS)
            task.is_bumped = False
            assert score in (None, now.tickets[ticket].get("score")), f"{ticket} has lost its place"
        fresh = [ticket for ticket, task in self.tasks.items() if not task.arrival and came_in(ticket)]
        due = {ticket: int(before.tickets.get(ticket, {}).get("eta_ms", 0)) for ticket in fresh}
        for ticket in sorted(fresh, key=lambda one: (due[one], int(one[1:]))):
            self.tasks[ticket].arrival = next(self.arrivals)

    def _claims(self, before, now):
        for gpu, claim in now.claims.items():
            old = before.claims.get(gpu, {})
            if claim["token"] == old.get("token"):
                continue
            if claim["token"] in self.tokens:  # regained
                assert self.tasks[claim["ticket"]].last_run == claim["token"]
                assert not old or old["state"] == "claimed"
                continue
            self.tokens.add(claim["token"])
            assert int(claim["fence"]) > self.fences[gpu], f"{gpu}: its fence does not grow"
            self.fences[gpu] = int(claim["fence"])
            assert gpu not in now.quarantined, f"{gpu} is quarantined"
            self._may_be_claimed(gpu)
            self._is_first_in_line(gpu, claim["ticket"], before, now)

    def _may_be_claimed(self, gpu):
        assert gpu in self.workers, f"{gpu}: claimed without a living worker"
        assert gpu not in self.drained | self.wanted | self.closing | self.strangers.keys(), f"{gpu} is closed"

    def _is_first_in_line(self, gpu, ticket, before, now):
        mine = self._place(gpu, ticket)
        for other, t in now.tickets.items():
            is_waiting = t["state"] == before.tickets.get(other, {}).get("state") == "pending"
            if is_waiting and (place := self._place(gpu, other)) is not None:
                assert mine < place, f"{ticket} was claimed before {other}"

    def _place(self, gpu, ticket):
        task = self.tasks[ticket]
        alias = "node:3" if gpu == "GPU-3" else gpu
        lines = [gpu, *([alias] if alias != gpu else [])]
        held = task.held
        if held.pin:
            line = lines.index(held.pin) if held.pin in lines else None
        else:
            line = 2 + GPUS[gpu].index(held.pool) if held.pool in GPUS[gpu] else None
        return None if line is None else (line, task.priority, task.arrival)

    def _deliveries(self, now):
        for ticket, t in now.tickets.items():
            given = 1 if t["state"] in ("claimed", "started", "tail") else 0
            if t["state"] == "ending":
                assert int(t.get("deliveries", 0)) <= LIMIT
                continue
            assert int(t.get("deliveries", 0)) == self.tasks[ticket].deaths + given, f"{ticket}: wrongly counted"
            assert int(t.get("deliveries", 0)) <= LIMIT

    # at the end everything heals

    def teardown(self):
        try:
            if sys.exc_info()[0] is None:  # else a step has failed, and its error is the one to see
                self._heal()
        finally:
            self.world.close()
            self.client.close()

    def _heal(self):
        self.ledger.is_reply_lost = False
        self.world.end_grace()
        for gpu in GPUS:
            if gpu in self.strangers:
                self.world.delete_lease(gpu)
            self.world.unwant(gpu)
            self.world.deafen(gpu)
            self.world.lapse_presence(gpu)
            assert self._join(gpu) == ["joined"]
        for gpu in GPUS:
            self.ledger.drain(gpu, drained=False)
        for _ in range(3 * len(self.tasks) + 15):
            self._serve()
            if not self.client.exists(*[self.world.key("ticket", ticket) for ticket in self.tasks] or ["-"]):
                break
        picture = self._picture()
        assert picture.tickets == {}, "these never reach their end"
        assert picture.ended == self.tasks.keys()
        found = inconsistencies(self.ledger)
        assert not found, found
        left = {key.removeprefix("gpu:").partition(":")[0] for key in self.client.scan_iter("gpu:*")}
        lines = {"pending", "pinned", "pinned_in"}
        assert not left & {"lease", "claim", "task", "message", "returned", "deadlines", *lines}

    def _serve(self):
        for ticket in self.client.zrange(self.world.key("scheduled"), 0, -1):
            self.world.make_due(ticket)
        self.ledger.promote()
        for gpu in GPUS:
            worker = self.workers[gpu]
            self.ledger.inspect(gpu, change=True)
            claim = self.world.claim_of(gpu)
            if claim.get("state") == "claimed":
                self.world.lapse(gpu)
                if claim["token"] == self.world.lease(gpu):
                    worker.report()
            if claim:
                self.world.lapse(gpu)
                self.ledger.reap(gpu)
            self.world.quarantine_is_over(gpu)
            worker.report()
            worker.claim()
            while message := worker.pop():
                if worker.start(message, "heal") in STARTED:
                    assert self.ledger.release(message) == "released"
        self.ends_are_tried_again()
        while ending := self.ledger.end():
            assert self.ledger.finish(ending.ticket) == "ended"

    # how

    @staticmethod
    def _pick(these, which):
        return these[which % len(these)]

    def _busy(self, gpu):
        """This GPU, or one that is claimed, if any is."""
        return gpu if gpu in self.before.claims or not self.before.claims else min(self.before.claims)

    def _forget(self, run):
        if run in self.runs:
            self.runs.remove(run)
            self.over.append(run)

    def _tell_lost(self, run):
        run.is_lost = True
        task = self.tasks[run.claim.ticket]
        if task.last_run == run.claim.token:
            task.last_run = ""

    def _has_grace(self):
        return int(self.client.hget(self.world.key("pulse"), "grace_until") or 0) > self.world.now_ms()

    def _picture(self):
        names = list(self.tasks)
        fields = ("ticket", "claim")
        keys = [self.world.key(fields[0], name) for name in names] + [self.world.key(fields[1], gpu) for gpu in GPUS]
        with self.client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hgetall(key)
            for gpu in GPUS:
                pipe.get(self.ledger.keys.lease(gpu))
                pipe.hexists(self.world.key("closed", gpu), "quarantine")
            pipe.zrange(self.world.key("ended"), 0, -1)
            *found, ended = pipe.execute()
        hashes, leases, closed = found[: len(keys)], found[len(keys) :: 2], found[len(keys) + 1 :: 2]
        tickets = {name: one for name, one in zip(names, hashes, strict=False) if one}
        claims = {gpu: one for gpu, one in zip(GPUS, hashes[len(names) :], strict=True) if one}
        leases = {gpu: one for gpu, one in zip(GPUS, leases, strict=True) if one}
        quarantined = {gpu for gpu, one in zip(GPUS, closed, strict=True) if one}
        return Picture(tickets, claims, leases, set(ended), quarantined)
