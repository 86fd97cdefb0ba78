"""The ledger: every change of state is one Lua operation, atomic, by the server's clock."""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.ledger import scripts
from celery_gpulease.ledger.connection import connect, in_our_words, timeout_for
from celery_gpulease.ledger.keys import Keys

if TYPE_CHECKING:
    from celery_gpulease.model import Claim, Device, Held, Presence
    from celery_gpulease.settings import Settings

#: Milliseconds after which a reconciler's turn ends by itself.
TURN_MS: Final = 60_000
#: Tickets that were given up, or have vanished, before one whose end can be written.
ENDS_PER_CALL: Final = 100


@dataclass(frozen=True)
class Agenda:
    """What is due: seconds until each, None for never; `lapsed` are GPUs whose lease's deadline has passed."""

    now_ms: int
    deadline: float | None
    due: float | None
    ending: float | None
    lapsed: list[str]


@dataclass(frozen=True)
class Closed:
    """Why a claim was not made; `lease_ms` is what is left of the lease in the way (-1: it has no TTL, -2: none)."""

    reason: str
    lease_ms: int


@dataclass(frozen=True)
class Ending:
    """A ticket whose end must be written outside Redis, and why: cancelled, expired, lease_lost, unstarted, damaged."""

    ticket: str
    task_id: str
    task: str
    why: str
    deliveries: int
    has_run: bool
    message: str


@dataclass(frozen=True)
class Cancelled:
    """What CANCEL found of a task.

    Attributes:
        is_known: The ledger has it: else it has ended, or was never held.
        running_on: The GPUs where it runs already, which it goes on doing.
        endings: What was taken back: the caller writes these ends now (`dispatch.ending.cancel`).
    """

    is_known: bool
    running_on: list[str]
    endings: list[Ending]


@dataclass(frozen=True)
class Bumped:
    """What BUMP found of a task.

    Attributes:
        word: 'bumped', 'given' (a GPU has it already), 'ending' or 'unknown'.
        places: Where it waits now: the pool, or the GPU that it is pinned to, and its position there (from 1; None
            where it is not due yet).
    """

    word: str
    places: list[tuple[str, int | None]]


@dataclass(frozen=True)
class Forced:
    """Who loses a GPU's lease by order.

    Attributes:
        word: 'started' (a run, which is told), 'claimed' (it was not started, and goes back to its place), 'foreign',
            'free' (nobody has the lease) or 'unknown' (no such GPU).
        gpu: Its id.
        loser: The task and its id, and who serves the GPU; or the foreign holder.
    """

    word: str
    gpu: str = ""
    loser: str = ""


class Ledger:
    """Speaks to the Redis that holds leases and lines.

    Any reply may be lost after the script ran: every operation is safe to repeat with the same arguments. All raise
    LedgerUnavailable where Redis does not answer.

    Args:
        settings: Where it is, and how its keys begin.
        queue_prefix: What stands before a queue's name in the broker's Redis (kombu's `global_keyprefix`).
    """

    def __init__(self, settings: Settings, queue_prefix: str = "") -> None:
        self.settings = settings
        self.keys = Keys(settings.key_prefix)
        self.queue_prefix, self.route = queue_prefix, f"{queue_prefix}gpu."
        self._scripts: dict[str, Any] = {}

    @cached_property
    def client(self) -> Any:
        """A redis.Redis that answers in text; it survives a fork (redis-py makes new connections in the child)."""
        return connect(
            self.settings.redis_url,
            {"socket_timeout": timeout_for(self.settings.heartbeat_interval), **self.settings.redis_options},
            decode_responses=True,
            encoding_errors="replace",
        )

    # the road of a ticket

    def hold(self, held: Held) -> str:
        """Puts a finished message in its line and gives it to a free GPU, if there is one.

        Returns:
            'held', 'scheduled' (not due yet), 'claimed', 'known' (a repeated call), or 'lost': the run that sends this
            in its own place is not current any more, and nothing was held.
        """
        return str(self._claiming("hold", **asdict(held))[0])

    def claim(self, gpu: str) -> Closed | str | None:
        """Takes work for a GPU, by its own worker: the ticket, None when nobody waits, or why it is closed."""
        answer = self._claiming("claim", gpu=gpu)
        if answer[0] == "closed":
            return Closed(answer[1], int(answer[2]))
        return str(answer[1]) if answer[0] == "claimed" else None

    def start(self, claim: Claim, nonce: str, holder: str, *, acks_late: bool, limit: int, stores_result: bool) -> str:
        """Takes a routed ticket over, just before it runs.

        Args:
            claim: What the routed message says.
            nonce: Of this request; the same one may ask again.
            holder: The worker's instance, which a successor must know to be dead before it takes the run over.
            acks_late: May it run again when its worker dies?
            limit: How often it is given out at most.
            stores_result: Does its result go to the backend?

        Returns:
            'run', or 'again' where an earlier run may have stored its end; 'twice' (another request has it), 'stale'
            (the claim is over), 'foreign' (a stranger took the GPU, the ticket is back in line) or 'unknown' (there is
            no such ticket): the message is dropped.
        """
        answer = self._call(
            "start",
            gpu=claim.gpu,
            ticket=claim.ticket,
            token=claim.token,
            nonce=nonce,
            holder=holder,
            acks_late=int(acks_late),
            limit=limit,
            stores_result=int(stores_result),
        )
        return str(answer[0])

    def defer(self, claim: Claim, seconds: float) -> str:
        """Puts a claim that may not start yet into the schedule: 'scheduled', or 'stale' (the claim is over)."""
        delay_ms = max(1, math.ceil(seconds * 1000))
        answer = self._call("defer", gpu=claim.gpu, ticket=claim.ticket, token=claim.token, delay_ms=delay_ms)
        return str(answer[0])

    def renew(self, claim: Claim, *, is_lost: bool = False) -> str:
        """Keeps a run's lease for another ttl.

        Args:
            claim: Of the run.
            is_lost: It was told before that its lease is lost: it never takes it back.

        Returns:
            'renewed', 'regained' (it had lapsed), 'robbed' (a stranger has the GPU; said each time, as a reply may be
            lost), 'tail' (it gave its lease back), 'lost' (it runs elsewhere, or its lease was taken by force),
            'ended', 'unstarted' or 'flushed' (Redis has forgotten all but the lease, which is kept until the run ends).
        """
        word, *why = self._call(
            "renew",
            gpu=claim.gpu,
            ticket=claim.ticket,
            token=claim.token,
            fence=claim.fence,
            ttl_ms=round(self.settings.lease_ttl * 1000),
            is_lost=int(is_lost),
            route=self.route,
        )
        return "robbed" if why == ["robbed"] else str(word)

    def release(self, claim: Claim) -> str:
        """Gives the lease back and ends the ticket: 'released', 'ended' (before), 'lost' or 'unknown'."""
        answer = self._call("release", gpu=claim.gpu, ticket=claim.ticket, token=claim.token, route=self.route)
        return str(answer[0])

    def requeue(self, claim: Claim, why: str, *, counted: bool, wanted: bool = False) -> str:
        """Puts a ticket back at its old place: 'pending', 'claimed' (again), 'ending', 'ended' or 'stale'.

        Args:
            claim: Of the run, or of the claim that did not start.
            why: For the journal.
            counted: Does it count as a delivery? A death does; what the task or a shutdown asked for does not.
            wanted: The task itself asked to run once more, whatever is stored of this run.
        """
        answer = self._claiming(
            "requeue",
            gpu=claim.gpu,
            ticket=claim.ticket,
            token=claim.token,
            why=why,
            counted=int(counted),
            wanted=int(wanted),
        )
        return str(answer[0])

    def give_back(self, claim: Claim) -> str:
        """Gives a run's GPU back early: 'tail' (it runs on without it), or 'stale'."""
        return str(self._call("give_back", gpu=claim.gpu, ticket=claim.ticket, token=claim.token)[0])

    def is_lost(self, claim: Claim) -> bool:
        """Has this run's lease gone to another holder, or its task elsewhere?"""
        is_elsewhere, why = self._whereabouts(claim)
        return is_elsewhere or why in ("robbed", "forced")

    def is_elsewhere(self, claim: Claim) -> bool:
        """Has this run's task started, or ended, elsewhere? Asked by a run that is not over.

        A run whose ticket only went back to the line, or that was robbed or forced to give up its lease, is still its
        task's only one: its end will count.
        """
        return self._whereabouts(claim)[0]

    def _whereabouts(self, claim: Claim) -> tuple[bool, str | None]:
        """Is the run's task elsewhere; and, where the run has none, why it has no lease."""
        with in_our_words("is_lost"):
            names = ["state", "last_run", "why"]
            state, last_run, why = self.client.hmget(self.keys.named("ticket", claim.ticket), names)
            if state is None:
                is_ended = self.client.zscore(self.keys.named("ended"), claim.ticket) is not None
                return is_ended or self.client.get(self.keys.lease(claim.gpu)) != claim.token, None
        return last_run != claim.token, why if state == "tail" else None

    def is_reachable(self) -> bool:
        """Does Redis answer now?"""
        try:
            with in_our_words("ping"):
                return bool(self.client.ping())
        except LedgerUnavailable:
            return False

    def reap(self, gpu: str) -> str:
        """Takes up what a dead holder left: 'reaped', 'held' (it is not over), 'grace' or 'none'."""
        return str(self._claiming("reap", gpu=gpu)[0])

    def promote(self) -> tuple[int, int]:
        """Lets what is due enter its line and what has expired go to its end; how many of both."""
        promoted, expired = self._claiming("promote")
        return int(promoted), int(expired)

    # ends outside Redis

    def end(self, ticket: str = "") -> Ending | None:
        """Takes the next ticket whose end is to be written, or this one; nobody else gets it for 30 seconds."""
        for _ in range(1 if ticket else ENDS_PER_CALL):
            word, *found = self._call("end", ticket=ticket)
            if word == "end":
                return _ending(found)
            if word == "none":
                break
        return None

    def finish(self, ticket: str) -> str:
        """The end is written: 'ended', or 'stale' when it was before."""
        return str(self._call("finish", ticket=ticket)[0])

    # the worker of a GPU

    def join(self, device: Device, pools: tuple[str, ...], presence: Presence, dead: str = "") -> list[str]:
        """Registers a GPU and who serves it.

        Args:
            device: The GPU.
            pools: Which it serves, in this order.
            presence: Of the worker.
            dead: An instance whose processes are certainly gone. Where its presence is in the way, the GPU and what
                was left there are taken over in the same step, whatever is left of any ttl. Two may say so at the same
                time: one joins, the other is told of that one.

        Returns:
            ['joined'], ['in_use', presence of the other, its last report, '1' where it stops], or ['named', other GPU].
        """
        answer = self._claiming(
            "join",
            gpu=device.id,
            instance=presence.instance,
            presence=json.dumps(asdict(presence)),
            alias=device.alias,
            index=device.index,
            uuid=device.uuid,
            host=device.host,
            pools=",".join(pools),
            ttl_ms=round(self.settings.lease_ttl * 1000),
            heartbeat_ms=round(self.settings.heartbeat_interval * 1000),
            dead=dead,
        )
        return list(map(str, answer))

    def report(self, gpu: str, presence: Presence, running: Claim | None, grace: float) -> str:
        """Says that the worker lives and what it runs.

        Args:
            gpu: Its id.
            presence: Of the worker.
            running: The claim that it runs or is about to run.
            grace: Seconds after which a claim that was not started is routed once more.

        Returns:
            'present', 'rerouted', 'unregistered' (join again) or 'taken' (another worker serves this GPU).
        """
        answer = self._claiming(
            "report",
            gpu=gpu,
            instance=presence.instance,
            presence=json.dumps(asdict(presence)),
            running_token=running.token if running else "",
            grace_ms=round(grace * 1000),
        )
        return str(answer[0])

    def close(self, gpu: str, presence: Presence) -> None:
        """The worker stops: nothing new from now on, and what it did not start goes back."""
        self._claiming("leave", gpu=gpu, instance=presence.instance, phase="closing")

    def leave(self, gpu: str, presence: Presence) -> None:
        """The worker has stopped: the GPU is offline, and what still ran goes back."""
        self._claiming("leave", gpu=gpu, instance=presence.instance, phase="gone")

    def agenda(self) -> Agenda:
        """What is due, and when to look again."""
        now, *waits, lapsed = self._call("agenda")
        deadline, due, ending = (None if ms == -1 else ms / 1000 for ms in waits)
        return Agenda(now, deadline, due, ending, lapsed)

    # operators and the reconciler

    def drain(self, gpu: str, *, drained: bool) -> str | None:
        """No new work for a GPU, or work again: its id, None where it is unknown."""
        answer = self._claiming("drain", gpu=gpu, drained=int(drained))
        return None if answer[0] == "unknown" else str(answer[1])

    def cancel(self, task_id: str) -> Cancelled:
        """Takes back what is held of a task; for 30 seconds nobody but the caller writes its end. Safe to repeat."""
        word, running_on, ends = self._claiming("cancel", task_id=task_id)
        return Cancelled(word == "known", running_on, [_ending(found) for _, *found in ends])

    def bump(self, task_id: str, priority: int) -> Bumped:
        """Gives what waits of a task another priority, 0 to 255: 0 is served first."""
        word, *places = self._call("bump", task_id=task_id, priority=priority)
        return Bumped(word, [(where, None if position == -1 else int(position)) for where, position in places])

    def force(self, gpu: str) -> Forced:
        """Takes a GPU's lease away by order, whoever has it.

        A run is told at once, and never takes the lease back; while it still runs, no task is given to this GPU.

        Args:
            gpu: Any name of it.
        """
        word, *found = self._claiming("force", gpu=gpu)
        if word in ("claimed", "started"):
            name, task_id, task, presence = found
            worker = json.loads(presence)["worker"] if presence else "no living worker"
            return Forced(word, name, f"{task}[{task_id}] ({worker})")
        return Forced(word, *found)

    def take_turn(self, who: str, age: float = 0.0) -> bool:
        """One reconciler at a time: True when it is our turn now.

        Args:
            who: Of this process; it ends its turn by the same name.
            age: Seconds that must have passed since the last turn began.
        """
        return str(self._call("turn", who=who, age_ms=round(age * 1000), ttl_ms=TURN_MS)[0]) == "yours"

    def end_turn(self, who: str) -> None:
        """Our turn is over; nothing happens where it is not ours any more."""
        self._call("turn", who=who, age_ms="", ttl_ms="")

    def wake(self, what: str) -> bool:
        """Tells the worker whose heartbeat was last; False when nobody listens."""
        with in_our_words("wake"):
            gpu = self.client.hget(self.keys.named("pulse"), "gpu")
            return bool(gpu and self.client.publish(self.keys.here(str(gpu)), what))

    def dispatch(self, gpu: str) -> str:
        """Gives a free GPU with a living worker its next task: 'claimed', 'idle' (nobody waits) or 'closed'."""
        return str(self._claiming("dispatch", gpu=gpu)[0])

    def inspect(self, gpu: str, *, change: bool) -> list[Any]:
        """One GPU as the reconciler finds it; with `change`, the index of free GPUs is put right."""
        return self._call("inspect", gpu=gpu, change=int(change))

    def correct_ticket(self, ticket: str, found_in: str, *, change: bool) -> list[str]:
        """Puts one ticket in the one place that belongs to it: its task id, its GPU, and what was wrong.

        Args:
            ticket: Its id.
            found_in: The key after the prefix, `pending:default`, in which it was seen; empty for its own.
            change: False only says what is wrong.
        """
        return list(map(str, self._claiming("correct_ticket", ticket=ticket, found_in=found_in, change=int(change))))

    def correct_gpu(self, gpu: str, found_in: str, *, change: bool) -> list[str]:
        """Puts right what Redis alone can tell of one GPU; what was wrong. See `correct_ticket`."""
        return list(map(str, self._claiming("correct_gpu", gpu=gpu, found_in=found_in, change=int(change))))

    def correct_counts(self, *, change: bool) -> list[str]:
        """Counts what is scheduled anew; what was wrong."""
        return list(map(str, self._call("correct_counts", change=int(change))))

    def corrected(self, ticket: str, gpu: str, detail: str) -> None:
        """Writes into the journal what was corrected, and counts it."""
        self._call("corrected", ticket=ticket, gpu=gpu, detail=detail)

    # how a script is called

    def _claiming(self, name: str, **values: Any) -> list[Any]:
        """A script that may make a claim: it needs a seed for tokens and the queues' name."""
        return self._call(name, **values, seed=uuid.uuid4().hex, route=self.route)

    def _call(self, name: str, **values: Any) -> list[Any]:
        script = self._scripts.get(name)
        one = scripts.source(name)
        if script is None:
            script = self._scripts[name] = self.client.register_script(one.text)
        with in_our_words(name):
            answer: list[Any] = script(keys=[self.keys.prefix], args=scripts.arguments_of(one, values))
        return answer


def _ending(found: list[Any]) -> Ending:
    ticket, task_id, task, why, deliveries, runs, message = found
    return Ending(ticket, task_id, task, why, int(deliveries), int(runs) > 0, message)
