"""A task's story in sentences: where it is now, and what each entry of the journal means."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from celery.backends.base import DisabledBackend
from celery.states import FAILURE, READY_STATES

from celery_gpulease.ledger.reasons import DETAILS, why_gpu_waits, why_not_due, why_pool_waits
from celery_gpulease.ledger.turns import host_and_pool
from celery_gpulease.operate.tables import seconds, task_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from celery_gpulease.ledger.journal import Entry
    from celery_gpulease.ledger.story import Whereabouts
    from celery_gpulease.ledger.views import GPURow

#: Characters of an exception's message that are told.
LONGEST_ERROR: Final = 200
#: The usual road of a task, and what people order: nothing of these is trouble.
USUAL: Final = frozenset(
    {"held", "scheduled", "promoted", "claimed", "started", "released", "given_back", "deferred", "bumped", "ended"}
    | {"dropped", "drained", "undrained", "removed"}
)
#: Ends, and ways back to the line, that somebody asked for.
WANTED: Final = frozenset({"cancelled", "expired", "shutdown", "rejected"})
#: Ways back to the line that are no death.
UNCOUNTED: Final = WANTED | {"dropped by Celery"}
#: With these a ticket's story begins.
FIRST: Final = frozenset({"held", "scheduled"})
#: Why a task fails with LeaseLost.
TOO_OFTEN: Final = "its process or its worker died too often (LeaseLost)"
ONLY_ONCE: Final = "its process or its worker died, and it may run only once (LeaseLost)"

#: What an entry means; {detail} is its own.
MEANINGS: Final = {
    "held": "it joined the line of pool {detail}",
    "scheduled": "it waits for its time; then it joins the line of pool {detail}",
    "promoted": "its time has come, it joined its line",
    "claimed": "it was given this GPU, and is sent there",
    "rerouted": "its worker did not get it, it is sent there once more",
    "dropped": "a message of it is not run: {detail}",
    "started": "it began",
    "regained": "its lease had lapsed or was deleted, and it took it back",
    "given_back": "it gave its GPU back early, and runs on",
    "released": "it ended, and gave its GPU back: {detail}",
    "deferred": "its rate_limit lets it wait",
    "bumped": "an operator gave it priority {detail} (0 goes first)",
    "requeued": "back at its old place in the line: {detail}",
    "left": "it is given up: {detail}",
    "superseded": "its run died after it had asked for another one: {detail}",
    "robbed": "another holder has its lease: {detail}",
    "forced": "an operator took the lease (`gpulease release --force`) from {detail}",
    "ending": "it ends without running (again): {detail}",
    "ended": "its end is written: {detail}",
    "gave_up": "its end could not be written in ten tries: {detail}",
    "vanished": "somebody deleted it, or the server evicted it: {detail}",
    "quarantined": "this GPU gets no work for a while: {detail}",
    "quarantine_ended": "this GPU gets work again: {detail}",
    "drained": "an operator drained this GPU: it gets no new work",
    "undrained": "an operator ended this GPU's drain: it gets work again",
    "offline": "the worker of this GPU is gone without a goodbye: {detail}",
    "removed": "an operator took this GPU out of the registry (`gpulease forget`) {detail}",
    "corrected": "the reconciler: {detail}",
}
#: What a detail means of a program, whose lease hangs on the process that runs it.
DETAILS_OF_PROGRAMS: Final = {
    "reaped": "who ran it (`gpulease run`, `reserve`) died, or was cut off for longer than the ttl"
}


@dataclass(frozen=True)
class End:
    """What the result backend says of a task; `trouble`: why it does not; `error`: of a FAILURE, in a line."""

    state: str | None
    trouble: str = ""
    error: str = ""

    @property
    def is_stored(self) -> bool:
        """Has the task ended, as far as it knows?"""
        return self.state in READY_STATES


def end_of(app: Any, task_id: str) -> End:
    """Asks the result backend, which may be any, and may be away."""
    if isinstance(app.backend, DisabledBackend):
        return End(None, "there is no result_backend to ask for its end")
    try:
        result = app.AsyncResult(task_id)
        state = str(result.state)
        return End(state, error=_in_a_line(result.result) if state == FAILURE else "")
    except Exception as error:  # noqa: BLE001  of any backend; it is told
        return End(None, f"the result backend does not say how it ended: {type(error).__name__}: {error}")


def _in_a_line(error: object) -> str:
    """The kind of an exception, and how its message begins."""
    first = next(iter(str(error).strip().splitlines()), "")[:LONGEST_ERROR]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def sentences(
    task_id: str, story: Sequence[Entry], now: Sequence[Whereabouts], end: End, gpus: Sequence[GPURow]
) -> list[str]:
    """Where a task is now: a sentence for each of its tickets, or how it ended and where it ran."""
    here = [one for one in now if not (one.state == "ending" and end.is_stored)]
    if here:
        return [f"{one.task}[{task_id}] {_now(one, gpus)}{_deliveries(one)}" for one in here]
    return [_past(task_id, story, end)]


def _past(task_id: str, story: Sequence[Entry], end: End) -> str:
    """How it ended, as far as the result backend and the journal know, and where it ran."""
    named = [task_of(one.task, task_id) for one in story if one.task]
    its = named[0] if named else f"task {task_id}"
    ran_on = [one.gpu for one in story if one.what == "started"]
    where = f"; it ran on {' and then on '.join(dict.fromkeys(ran_on))}" if ran_on else ""
    if any(map(is_of_a_program, story)):  # it has no state of Celery's
        how = [f": {meant}" for one in story if one.what in ("released", "ended") and (meant := _detail(one))]
        return f"{its} has ended{''.join(how[-1:])}{where}"
    if end.state is None:
        return f"{its} has ended{where} ({end.trouble})"
    if end.is_stored:
        error = f" ({end.error})" if end.error else ""
        return f"{its} has ended: {end.state}{error}{where}"
    return f"{its} is not held (any more){where}; its state is {end.state}"


def is_of_a_program(one: Entry) -> bool:
    """Is this of a program (`gpulease run`, `reserve`), which has no task of Celery's?"""
    return one.ticket != "" and one.ticket == one.task_id


def _now(one: Whereabouts, gpus: Sequence[GPURow]) -> str:
    since, held = seconds(one.gpu_seconds), seconds(one.held_seconds)
    if one.state == "pending":
        line, reason = _line(one, gpus)
        return f"has waited {held}, number {one.position} in the line of {line}: {reason}"
    if one.state == "scheduled":
        return f"waits for its time: {why_not_due(one.due_seconds or 0.0, one.deliveries)}"
    if one.state == "claimed":
        return f"was given GPU {one.gpu} {since} ago, and is about to start there"
    if one.state == "started":
        return _running(one, gpus)
    if one.state == "tail":
        why = {"early": "it gave that back early", "forced": "an operator took it away"}.get(
            one.why, "another holder has it"
        )
        return f"{_running(one, gpus)}, now without its lease: {why}"
    lost = ONLY_ONCE if one.deliveries == 1 else TOO_OFTEN
    return f"is about to end: {lost if one.why == 'lease_lost' else DETAILS.get(one.why, one.why)}"


def _line(one: Whereabouts, gpus: Sequence[GPURow]) -> tuple[str, str]:
    """The line in which it stands, and why it waits there."""
    if program := host_and_pool(one.pin):
        return f"programs on host {program[0]}", f"it needs a GPU of that host; {why_pool_waits(one.pool, gpus)}"
    if one.pin:
        return f"GPU {one.pin}", why_gpu_waits(one.pin, gpus)
    return f"pool {one.pool}", why_pool_waits(one.pool, gpus)


def _running(one: Whereabouts, gpus: Sequence[GPURow]) -> str:
    since = seconds(one.gpu_seconds)
    workers = [row.worker for row in gpus if row.id == one.gpu and row.worker]
    if not workers:
        return f"began on GPU {one.gpu}, whose worker is gone, {since} ago"
    return f"runs on GPU {one.gpu} (worker {workers[0]}), for {since} so far"


def _deliveries(one: Whereabouts) -> str:
    return f" (given out {one.deliveries} times)" if one.deliveries > 1 else ""


def rows(
    shown: Iterable[Entry], known: Iterable[Entry], scheduled: Container[str] = ()
) -> list[tuple[str, str, str, str | None, str]]:
    """Entries of the journal for people: when, what, where, to which task, and what it means.

    Args:
        shown: These.
        known: All that there are of the same tickets, oldest first: what came before and after tells more of some.
        scheduled: The tickets that wait for their time now.
    """
    of_tickets: dict[str, list[Entry]] = defaultdict(list)
    for one in known:
        of_tickets[one.ticket].append(one)
    of_tickets.pop("", None)
    better = {at: words for its in of_tickets.values() for at, words in _seen_together(its, scheduled)}
    return [
        (moment(one.at), one.what, one.gpu, task_of(one.task, one.task_id), better.get(one.number) or _meaning(one))
        for one in shown
    ]


def _seen_together(story: Sequence[Entry], scheduled: Container[str]) -> Iterator[tuple[str, str]]:
    """What the entries of one ticket mean beside each other: the number of each such entry, and words."""
    has_started, deaths = False, 0
    for at, one in enumerate(story):
        following = story[at + 1].what if at + 1 < len(story) else ""
        if one.what in ("claimed", "started"):
            has_started = one.what == "started"
        elif one.what == "requeued":
            deaths += has_started and one.detail not in UNCOUNTED
            if following == "promoted" or (not following and one.ticket in scheduled):
                yield one.number, f"it waits a while, then goes back to its old place in the line: {_detail(one)}"
        elif one.detail.startswith("lease_lost") and not is_of_a_program(one) and story[0].what in FIRST:
            yield one.number, _meaning(one, TOO_OFTEN if deaths else ONLY_ONCE)


def _meaning(one: Entry, lost: str = "") -> str:
    return MEANINGS.get(one.what, "{detail}").format(detail=_detail(one, lost)).rstrip(": ")


def _detail(one: Entry, lost: str = "") -> str:
    """A detail in words; of a task that failed with LeaseLost why (`lost`), and how it died the last time."""
    why, _, how = one.detail.partition(": ")
    if one.what == "forced":
        return f"a foreign holder, {one.detail}" if one.detail else "it"
    if why == "lease_lost" and is_of_a_program(one):
        return DETAILS_OF_PROGRAMS.get(how, DETAILS.get(how, how))
    if why == "lease_lost" and how:
        last = "" if lost == ONLY_ONCE else "the last time: "
        return f"{lost or DETAILS[why]}; {last}{DETAILS.get(how, how)}"
    if why == "lease_lost" and lost:
        return lost
    return DETAILS.get(one.detail, one.detail)


def moment(at: float) -> str:
    """A time for people, of this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def is_trouble(one: Entry) -> bool:
    """Did something not go its usual way?"""
    return one.what not in USUAL and not (one.what in ("requeued", "ending") and one.detail in WANTED)
