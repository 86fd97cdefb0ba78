"""What operators order, and what the reconciler corrects."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.ledger.answers import Bumped, Cancelled, Forced, Taken
from celery_gpulease.ledger.calls import Calls
from celery_gpulease.ledger.connection import in_our_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Milliseconds after which a turn ends by itself.
TURN_MS: Final = 60_000
#: Tasks, or tickets, in one round trip.
PAGE: Final = 100
#: Keys that one SCAN looks at.
SCAN: Final = 1000


class Orders(Calls):
    """The operations beside a task's road."""

    def drain(self, gpu: str, *, drained: bool) -> str | None:
        """No new work for a GPU, or work again: its id, None where it is unknown."""
        answer = self._claiming("drain", gpu=gpu, drained=int(drained))
        return None if answer[0] == "unknown" else str(answer[1])

    def cancel(self, task_id: str) -> Cancelled:
        """Takes back what is held of a task; its end is due then. Safe to repeat."""
        return next(self.cancel_each([task_id]))

    def cancel_each(self, task_ids: Iterable[str], *, revoked: bool = False) -> Iterator[Cancelled]:
        """The same for many, in their order.

        Args:
            task_ids: Of tasks of any kind.
            revoked: Remember them for three hours: what comes of them later, a retry say, ends too.
        """
        ids = iter(task_ids)
        while page := list(islice(ids, PAGE)):
            answers = self._claiming_each("cancel", [{"task_id": one, "revoked": int(revoked)} for one in page])
            for task_id, (word, running_on, taken) in zip(page, answers, strict=True):
                found = [Taken(ticket, task_id, task, bool(has_run)) for ticket, task, has_run in taken]
                yield Cancelled(word == "known", running_on, found)

    def revoke_stamp(self, stamp: str) -> None:
        """Remembers a stamp for three hours: a message that bears it ends when it is held, or goes back to its line."""
        self._call("revoke_stamp", stamp=stamp)

    def stamped(self, stamps: Iterable[str]) -> list[str]:
        """The ids of the tasks whose tickets bear one of these stamps; looks at every ticket, in pages."""
        client, asked, found = self.client, set(stamps), set[str]()
        with in_our_words("stamped"):
            names = client.scan_iter(self.keys.pattern("ticket:"), count=SCAN)
            while page := list(islice(names, PAGE)):
                with client.pipeline(transaction=False) as pipe:
                    for name in page:
                        pipe.hmget(name, "task_id", "stamps")
                    rows = pipe.execute()
                bearing = [task_id for task_id, borne in rows if not asked.isdisjoint(json.loads(borne or "[]"))]
                found.update(filter(None, bearing))
        return sorted(found)

    def take_search(self, stamps: Iterable[str], who: str) -> bool:
        """One worker looks for what bears these stamps: True for it, also when it asks again.

        The others, who heard the same order, need not for a minute; call `revoke_stamp` before, which minds what comes.
        """
        digest = hashlib.sha256(json.dumps(sorted(stamps)).encode()).hexdigest()[:32]
        name = self.keys.named("turn", f"stamps:{digest}")
        with in_our_words("take_search"):
            return bool(self.client.set(name, who, nx=True, px=TURN_MS)) or self.client.get(name) == who

    def bump(self, task_id: str, priority: int) -> Bumped:
        """Gives what waits of a task another priority, 0 to 255, in the broker's direction."""
        word, *places = self._call("bump", task_id=task_id, priority=self.rank(priority))
        return Bumped(word, [(where, None if position == -1 else int(position)) for where, position in places])

    def force(self, gpu: str) -> Forced:
        """Takes a GPU's lease away by order, whoever has it.

        A run is told at once, and never takes the lease back; while it still runs, no task is given to this GPU.

        Args:
            gpu: Any name of it.
        """
        word, *found = self._claiming("force", gpu=gpu)
        if word in ("claimed", "started", "program"):
            name, task_id, task, presence = found
            worker = json.loads(presence)["worker"] if presence else "no living worker"
            return Forced(word, name, f"{task}[{task_id}]" + (f" ({worker})" if presence != "" else ""))  # a program's
        return Forced(word, *found)

    def locate(self, task_id: str) -> list[list[Any]]:
        """Where each ticket of a task is now; see `story.whereabouts`."""
        return self._call("locate", task_id=task_id)

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

    def forget_lines(self) -> None:
        """Names no line any more in which nobody waits."""
        with in_our_words("forget_lines"):
            lines = iter(sorted(map(str, self.client.sscan_iter(self.keys.named("lines"), count=PAGE))))
        while page := list(islice(lines, PAGE)):
            self.about("forget_lines", page)

    def corrected(self, ticket: str, gpu: str, detail: str) -> None:
        """Writes into the journal what was corrected, and counts it."""
        self._call("corrected", ticket=ticket, gpu=gpu, detail=detail)
