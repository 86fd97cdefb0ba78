"""The exporter's memory of the journal: from what happened to whom, how long it took and how often it was so.

An entry says that something happened; how long a task waited, or a GPU was held, lies between two of them. What is
remembered for that is bounded. Nothing is asked of the scripts: following costs the hot path nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from celery_gpulease.operate import measures
from celery_gpulease.tally import OTHER, Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.ledger.figures import Wait
    from celery_gpulease.ledger.journal import Entry
    from celery_gpulease.tally import Measure

#: Tickets that are remembered; beyond that the oldest is forgotten, and asked for when it starts.
MOST_TICKETS: Final = 20_000
#: GPUs that are; a name that comes back is learnt anew.
MOST_GPUS: Final = 10_000


@dataclass
class Task:
    """What is known of a ticket: its pool, since when it waits (None: it does not), and the GPU that it has."""

    pool: str
    since: float | None = None
    gpu: str = ""


@dataclass
class Job:
    """What is known of a GPU: who had it last, of which pool, since when, and whether that lease is over.

    `free_since` is when a task ended there, where nothing but the next task has come to the GPU since.
    """

    ticket: str = ""
    pool: str | None = None
    since: float = 0.0
    is_over: bool = True
    free_since: float | None = None


class Story:
    """Takes entries in their order.

    Attributes:
        tally: Where it counts.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self._recall: Callable[[str], Wait | None] = lambda _: None
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._before: Entry | None = None

    def take(self, entry: Entry) -> None:
        """One more entry."""
        if act := self._acts.get(entry.what):
            act(self, entry)
        self._before = entry

    def begin(self, recall: Callable[[str], Wait | None]) -> None:
        """What was taken until now was the past, from which it has learnt: it counts from here on.

        Args:
            recall: What a ticket itself tells of its wait, for one whose entries were not seen.
        """
        self._recall, tally = recall, Tally()
        for measure, words in measures.KNOWN:
            for word in words:
                tally.count(measure, word, by=0)
        self.tally = tally
        for job in self._jobs.values():
            if not job.is_over and job.pool is None:
                job.pool = self._pool(job.ticket)

    def pass_over(self, gpu: str) -> None:
        """This GPU takes no work, or a stranger has it: what comes next there does not follow the task before."""
        self._job(gpu).free_since = None

    def _count(self, measure: Measure, word: str) -> None:
        """A stranger may have written any word, and as many as it likes."""
        self.tally.count(measure, word if word in measures.LABELS[measure] else OTHER)

    def _held(self, entry: Entry) -> None:
        self._remember(entry.ticket, Task(entry.detail, entry.at))

    def _scheduled(self, entry: Entry) -> None:
        self._remember(entry.ticket, Task(entry.detail))

    def _promoted(self, entry: Entry) -> None:
        if task := self._task(entry.ticket):
            task.since = entry.at

    def _claimed(self, entry: Entry) -> None:
        self._count(measures.CLAIMS, self._source(entry))
        self._give(entry)
        if task := self._task(entry.ticket):
            task.gpu = entry.gpu

    def _give(self, entry: Entry) -> None:
        job = self._job(entry.gpu)
        job.ticket, job.pool = entry.ticket, self._pool(entry.ticket)
        job.since, job.is_over = entry.at, False

    def _source(self, entry: Entry) -> str:
        """A script's entries stand together: so the one before a claim says which script made it."""
        before = self._before
        if before and before.what == "held" and before.ticket == entry.ticket:
            return "send"
        return "hand_over" if before and before.what == "released" and before.gpu == entry.gpu else "other"

    def _started(self, entry: Entry) -> None:
        task, job = self._task(entry.ticket), self._job(entry.gpu)
        if task and task.since is not None:
            self.tally.observe(measures.WAITING, max(0.0, entry.at - task.since), task.pool)
            if job.free_since is not None and task.since < job.free_since:
                self.tally.observe(measures.GAP, max(0.0, entry.at - job.free_since), task.pool)
            task.since = None
        job.free_since = None

    def _regained(self, entry: Entry) -> None:
        self._give(entry)
        self._job(entry.gpu).free_since = None
        if task := self._task(entry.ticket):
            task.since, task.gpu = None, entry.gpu

    def _released(self, entry: Entry) -> None:
        self._end_lease(entry, "ended")
        self._job(entry.gpu).free_since = entry.at
        self._forget(entry)

    def _given_back(self, entry: Entry) -> None:
        self._end_lease(entry, "early")

    def _taken(self, entry: Entry) -> None:
        if entry.ticket:  # else a stranger's lease was taken
            self._end_lease(entry, entry.what)

    def _requeued(self, entry: Entry) -> None:
        reason = _kind(entry.detail)
        self._count(measures.REDELIVERIES, reason)
        self._go_back(entry, reason, since=entry.at)

    def _deferred(self, entry: Entry) -> None:
        self._go_back(entry, "rate limit", since=None)

    def _go_back(self, entry: Entry, reason: str, since: float | None) -> None:
        self._end_on_its_gpu(entry, reason)
        if task := self._task(entry.ticket):
            task.since, task.gpu = since, ""

    def _ending(self, entry: Entry) -> None:
        self._end_on_its_gpu(entry, _kind(entry.detail))

    def _superseded(self, entry: Entry) -> None:
        self._end_on_its_gpu(entry, "superseded")
        self._forget(entry)

    def _gone(self, entry: Entry) -> None:
        self._end_on_its_gpu(entry, entry.what)
        self._forget(entry)

    def _dropped(self, entry: Entry) -> None:
        self._count(measures.DUPLICATES, entry.detail)

    def _corrected(self, entry: Entry) -> None:
        self._count(measures.CORRECTIONS, _kind(entry.detail))

    def _end_on_its_gpu(self, entry: Entry, reason: str) -> None:
        """The same where the entry need not name the GPU, and the ticket may have had none."""
        task = self._tasks.get(entry.ticket)
        gpu = entry.gpu or (task.gpu if task else "")
        if gpu and self._job(gpu).ticket == entry.ticket:
            self._end_lease(entry, reason, gpu)

    def _end_lease(self, entry: Entry, reason: str, gpu: str = "") -> None:
        """A lease ends once, whatever is told of its run afterwards; one whose claim was not seen has no length."""
        job = self._job(gpu or entry.gpu)
        if job.ticket != entry.ticket:
            self._count(measures.RELEASES, reason)
        elif not job.is_over:
            job.is_over = True
            self._count(measures.RELEASES, reason)
            if job.pool is not None:
                self.tally.observe(measures.HOLDING, max(0.0, entry.at - job.since), job.pool)

    def _remember(self, ticket: str, task: Task) -> Task:
        self._tasks[ticket] = task
        if len(self._tasks) > MOST_TICKETS:
            self._tasks.popitem(last=False)
        return task

    def _task(self, ticket: str) -> Task | None:
        found = self._tasks.get(ticket)
        if found is None and (told := self._recall(ticket)):
            return self._remember(ticket, Task(told.pool, told.since))
        return found

    def _pool(self, ticket: str) -> str | None:
        task = self._task(ticket)
        return task.pool if task else None

    def _forget(self, entry: Entry) -> None:
        self._tasks.pop(entry.ticket, None)

    def _job(self, gpu: str) -> Job:
        job = self._jobs.setdefault(gpu, Job())
        if len(self._jobs) > MOST_GPUS:
            self._jobs.popitem(last=False)
        return job

    _acts: ClassVar[dict[str, Callable[[Story, Entry], None]]] = {
        "held": _held,
        "scheduled": _scheduled,
        "promoted": _promoted,
        "claimed": _claimed,
        "started": _started,
        "regained": _regained,
        "released": _released,
        "given_back": _given_back,
        "robbed": _taken,
        "forced": _taken,
        "requeued": _requeued,
        "deferred": _deferred,
        "ending": _ending,
        "superseded": _superseded,
        "ended": _gone,
        "left": _gone,
        "vanished": _gone,
        "gave_up": _gone,
        "dropped": _dropped,
        "corrected": _corrected,
    }


def _kind(detail: str) -> str:
    """What stands before a colon is one of our own words; what comes after it, somebody's number or name."""
    return detail.partition(":")[0]
