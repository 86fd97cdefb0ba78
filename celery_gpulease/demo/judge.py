"""Judges a run of the demo: every number comes from what this very run left behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from celery_gpulease.demo.spans import common, total, union, without

if TYPE_CHECKING:
    from celery_gpulease.demo.record import Run, Wait
    from celery_gpulease.demo.spans import Span


@dataclass(frozen=True)
class Kill:
    """SIGKILL to the worker of a GPU, and to the process in which its job ran."""

    gpu: str
    job: str
    name: str
    at: float


@dataclass
class Story:
    """What happened, from the first job's sending to the finished picture.

    Attributes:
        gpus: Their ids, by their index.
        jobs: The name of every job that was sent, by its id.
        states: What the result backend says of each.
        runs: What the jobs wrote down.
        waits: When jobs joined the line, as the ledger wrote it down.
        outages: When GPUs had no worker.
        kill: The kill; None where no worker was killed in mid-job.
        is_same_picture: Is the picture byte for byte that of the one process?
        leftovers: What the ledger still holds when all is done.
        deaths: Processes that ended although nobody killed them.
    """

    gpus: list[str]
    ttl: float
    heartbeat: float
    begin: float
    end: float = 0.0
    jobs: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    outages: dict[str, list[Span]] = field(default_factory=dict)
    kill: Kill | None = None
    is_same_picture: bool = False
    leftovers: list[str] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)

    def span(self, run: Run) -> Span:
        """When a run was on its GPU; one that never wrote its end ran until its kill, else to the very last."""
        if run.end is not None:
            return run.start, run.end
        is_killed = self.kill is not None and run.gpu == self.kill.gpu and run.start < self.kill.at
        return run.start, self.kill.at if self.kill and is_killed else self.end

    def busy(self, gpu: str) -> list[Span]:
        """When somebody ran on a GPU."""
        return union(self.span(run) for run in self.runs if run.gpu == gpu)

    def served(self, gpu: str) -> list[Span]:
        """When a GPU had a living worker."""
        return without([(self.begin, self.end)], self.outages.get(gpu, ()))

    def waiting(self) -> list[Span]:
        """When somebody waited: a job waits from its joining the line until its body begins.

        So the way from the claim to the body counts as waiting too: what a GPU's user sees, not what the ledger sees.
        The killed job waits again once it is back in line, and not while its dead worker's lease lasts.
        """
        starts = [(run.job, run.start) for run in self.runs]
        ends = [
            min((at for job, at in starts if job == wait.job and at >= wait.since), default=self.end)
            for wait in self.waits
        ]
        return union(zip((wait.since for wait in self.waits), ends, strict=True))

    def idle_while_waited(self, gpu: str) -> list[Span]:
        """When a GPU with a living worker ran nothing, although somebody waited."""
        return common(without(self.served(gpu), self.busy(gpu)), self.waiting())

    def busy_share(self, gpu: str) -> float:
        """The part of its served time in which a GPU ran something."""
        served = self.served(gpu)
        return total(common(self.busy(gpu), served)) / (total(served) or 1.0)

    def second_run(self) -> Run | None:
        """The run by which the killed job came back."""
        return next(
            (run for run in self.runs if self.kill and run.job == self.kill.job and run.start > self.kill.at), None
        )


@dataclass(frozen=True)
class Promise:
    """What was promised, whether this run kept it, and by what it is seen."""

    name: str
    is_kept: bool
    finding: str


def judge(story: Story) -> list[Promise]:
    """Every promise, judged by this run."""
    return [
        nothing_lost(story),
        nothing_twice(story),
        nothing_overlapped(story),
        no_idle_gpu(story),
        killed_job_back(story),
        killed_gpu_back(story),
        right_picture(story),
        clean_end(story),
    ]


def nothing_lost(story: Story) -> Promise:
    """Every job that was sent has its result in the backend, and a run that came to its end."""
    finished = {run.job for run in story.runs if run.is_finished}
    lost = [name for job, name in story.jobs.items() if job not in finished or story.states.get(job) != "SUCCESS"]
    finding = f"{len(story.jobs) - len(lost)} of {len(story.jobs)} jobs have run and have their result"
    return Promise("Nothing lost", bool(story.jobs) and not lost, finding + (f"; lost: {listed(lost)}" if lost else ""))


def nothing_twice(story: Story) -> Promise:
    """No job came to its end twice."""
    counts = Counter(run.job for run in story.runs if run.is_finished)
    twice = [story.jobs.get(job, job) for job, count in counts.items() if count > 1]
    finding = f"{len(story.runs)} runs, {counts.total()} of them to the end"
    return Promise("Nothing done twice", not twice, finding + (f"; twice: {listed(twice)}" if twice else ""))


def nothing_overlapped(story: Story) -> Promise:
    """On no GPU a run began before the one before it had ended, and each has a greater fence than the one before."""
    found = []
    for gpu in story.gpus:
        runs = sorted((run for run in story.runs if run.gpu == gpu), key=lambda run: run.start)
        ends_at = float("-inf")
        for run in runs:
            if run.start < ends_at:
                found.append(f"{run.name} on {gpu}")
            ends_at = max(ends_at, story.span(run)[1])
        found += [
            f"{after.name} has no greater fence" for before, after in pairwise(runs) if after.fence <= before.fence
        ]
    found += [f"{run.name} on the unknown GPU {run.gpu}" for run in story.runs if run.gpu not in story.gpus]
    finding = listed(found) if found else "never two jobs on one GPU, and every fence greater than the last"
    return Promise("Nothing overlapped", not found, finding)


def no_idle_gpu(story: Story) -> Promise:
    """No GPU with a living worker was idle for longer than a heartbeat while somebody waited."""
    longest, gpu = max((longest_idle(story, gpu), gpu) for gpu in story.gpus)
    finding = f"at most {in_words(longest)}, on {gpu} (promised: one heartbeat, {in_words(story.heartbeat)})"
    return Promise("No GPU idle while one waited", longest <= story.heartbeat, finding)


def killed_job_back(story: Story) -> Promise:
    """The killed job ran again: its lease lapses within the ttl, a heartbeat sees it, a GPU becomes free."""
    name = "The killed job came back"
    if story.kill is None:
        return Promise(name, is_kept=False, finding="no worker was killed in mid-job")
    again = story.second_run()
    if again is None:
        return Promise(name, is_kept=False, finding=f"{story.kill.name} was killed and never ran again")
    took = again.start - story.kill.at
    allowed = story.ttl + story.heartbeat + max(end - begin for begin, end in map(story.span, story.runs))
    finding = (
        f"{story.kill.name} runs again after {in_words(took)}, on {again.gpu} "
        f"(promised: ttl, heartbeat and the longest job, {in_words(allowed)})"
    )
    return Promise(name, took <= allowed, finding)


def killed_gpu_back(story: Story) -> Promise:
    """The GPU of the killed worker has a living worker again."""
    name = "The killed GPU came back"
    if story.kill is None:
        return Promise(name, is_kept=False, finding="no worker was killed in mid-job")
    back = max((end for _, end in story.outages.get(story.kill.gpu, ())), default=story.end)
    if back >= story.end:
        return Promise(name, is_kept=False, finding=f"{story.kill.gpu} was still without a worker at the end")
    since = sum(run.gpu == story.kill.gpu and run.start >= story.kill.at for run in story.runs)
    finding = f"{story.kill.gpu} served again after {in_words(back - story.kill.at)}, {since} jobs since then"
    return Promise(name, is_kept=True, finding=finding)


def right_picture(story: Story) -> Promise:
    """The chord's picture is the one that a single process makes."""
    finding = "the same, byte for byte," if story.is_same_picture else "another one than"
    return Promise("The right picture", story.is_same_picture, f"{finding} as made in one process without Celery")


def clean_end(story: Story) -> Promise:
    """In the end nobody waits, every GPU is free, and no process ended that was not killed."""
    found = story.leftovers + [f"{name} ended by itself" for name in story.deaths]
    return Promise(
        "Nothing left over", not found, listed(found) if found else "nobody waits, every GPU is free and served"
    )


def longest_idle(story: Story, gpu: str) -> float:
    """The longest time that this GPU was idle while somebody waited."""
    return max((end - begin for begin, end in story.idle_while_waited(gpu)), default=0.0)


def in_words(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def listed(names: list[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")  # noqa: PLR2004
