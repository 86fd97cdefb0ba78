"""The ledger: every change of state is one Lua operation, atomic, by the server's clock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.ledger.answers import Agenda, Closed, Ending
from celery_gpulease.ledger.connection import in_our_words
from celery_gpulease.ledger.orders import Orders
from celery_gpulease.ledger.removing import Removing
from celery_gpulease.ledger.turns import Turns
from celery_gpulease.ledger.workers import Workers

if TYPE_CHECKING:
    from celery_gpulease.model import Claim, Held

#: Tickets that were given up, or have vanished, before one whose end can be written.
ENDS_PER_CALL: Final = 100


class Ledger(Workers, Turns, Orders, Removing):
    """Speaks to the Redis that holds leases and lines.

    Any reply may be lost after the script ran: every operation is safe to repeat with the same arguments. All raise
    LedgerUnavailable where Redis does not answer.
    """

    # the road of a ticket

    def hold(self, held: Held) -> str:
        """Puts a finished message in its line and gives it to a free GPU, if there is one.

        Returns:
            'held', 'scheduled' (not due yet), 'claimed', 'revoked' (before it was sent: its end is due), 'known' (a
            repeated call), or 'lost': the run that sends this in its own place is not current any more, and nothing was
            held.
        """
        return str(self._claiming("hold", **self._values_of(held))[0])

    def hold_command(self, held: Held) -> list[Any]:
        """The same, for whom does not wait for each answer (`Unanswered`)."""
        return self._command("hold", **self._values_of(held))

    def _values_of(self, held: Held) -> dict[str, Any]:
        return {**vars(held), "priority": self.rank(held.priority)}

    def claim(self, gpu: str, program_fence: int = 0) -> Closed | str | None:
        """Takes work for a GPU, by its own worker: the ticket, None when nobody waits, or why it is closed.

        Args:
            gpu: Its id.
            program_fence: As for `recall`; where Redis has forgotten it that is the reason.
        """
        answer = self._claiming("claim", gpu=gpu, program_fence=program_fence, hold_ms=self._held_back_ms())
        if answer[0] == "forgotten":
            return Closed("forgotten", self._held_back_ms())
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
            'run'; 'rerun' where it has run before, or 'again' where that run may have stored its end. Else the message
            is dropped: 'twice' (another request has it), 'stale' (the claim is over), 'foreign' (a stranger took the
            GPU, the ticket is back in line) or 'unknown' (there is no such ticket).
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

    def first_run_ms(self, claim: Claim) -> int:
        """When this ticket first ran, in the epoch's milliseconds; 0 for never."""
        with in_our_words("first_run"):
            return int(self.client.hget(self.keys.named("ticket", claim.ticket), "first_run_ms") or 0)

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
        )
        return "robbed" if why == ["robbed"] else str(word)

    def release(self, claim: Claim, detail: str = "") -> str:
        """Gives the lease back, or over to who waits, and ends the ticket.

        Args:
            claim: Of the run.
            detail: How it ended, for the journal; of a task Celery tells it.

        Returns:
            'released', 'ended' (before), 'lost' or 'unknown'.
        """
        answer = self._claiming("release", gpu=claim.gpu, ticket=claim.ticket, token=claim.token, detail=detail)
        return str(answer[0])

    def requeue(self, claim: Claim, why: str, *, counted: bool, wanted: bool = False) -> str:
        """Puts a ticket back at its old place.

        Args:
            claim: Of the run, or of the claim that did not start.
            why: For the journal.
            counted: Does it count as a delivery? A death does; what the task or a shutdown asked for does not.
            wanted: The task itself asked to run once more, whatever is stored of this run.

        Returns:
            'pending', 'scheduled' (its runs died: it waits for a while), 'claimed' (again), 'ending', 'ended' or
            'stale'.
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
        keys = self.keys
        with in_our_words("is_lost"), self.client.pipeline(transaction=False) as pipe:
            pipe.get(keys.named("fence", claim.gpu))  # first: a RENEW in between makes Redis remember
            pipe.hmget(keys.named("ticket", claim.ticket), ["state", "last_run", "why"])
            pipe.get(keys.lease(claim.gpu))
            pipe.zscore(keys.named("ended"), claim.ticket)
            fence, (state, last_run, why), lease, ended = pipe.execute()
        if last_run != claim.token and int(fence or 0) < claim.fence:  # forgotten: where no other began, its end counts
            is_robbed = lease not in (None, claim.token)
            return state in ("started", "tail") or ended is not None, "robbed" if is_robbed else None
        if state is None:
            return lease != claim.token, None
        return last_run != claim.token, why if state == "tail" else None

    def is_reachable(self) -> bool:
        """Does Redis answer now?"""
        try:
            self.ping()
        except LedgerUnavailable:
            return False
        return True

    def ping(self) -> None:
        """Asks Redis for any answer."""
        with in_our_words("ping"):
            self.client.ping()

    def reap(self, gpu: str) -> str:
        """Takes up what a dead holder left: 'reaped', 'held' (it is not over), 'grace' or 'none'."""
        return str(self._claiming("reap", gpu=gpu)[0])

    def promote(self) -> tuple[int, int]:
        """Lets what is due enter its line and what has expired go to its end; how many of both."""
        promoted, expired = self._claiming("promote")
        return int(promoted), int(expired)

    # ends outside Redis

    def end(self, ticket: str = "") -> Ending | None:
        """Takes the next ticket whose end is due, or this one if it is; nobody else gets it for 30 seconds."""
        for _ in range(1 if ticket else ENDS_PER_CALL):
            word, *found = self._call("end", ticket=ticket)
            if word == "end":
                return Ending.from_reply(found)
            if word == "none":
                break
        return None

    def finish(self, ticket: str) -> str:
        """The end is written: 'ended', or 'stale' when it was before."""
        return str(self._call("finish", ticket=ticket)[0])

    def put_off(self, ticket: str) -> str:
        """The end cannot be written yet, and is offered again, however often: 'put_off', or 'stale' when it was."""
        return str(self._call("put_off", ticket=ticket)[0])

    # what is due

    def agenda(self) -> Agenda:
        """What is due, and when to look again."""
        now, *waits, lapsed = self._call("agenda")
        deadline, due, ending = (None if ms == -1 else ms / 1000 for ms in waits)
        return Agenda(now, deadline, due, ending, lapsed)
