"""The demo, from the first process to the last: starts, sends, kills, waits, and hands what happened to the judge."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from celery import chord
from celery.states import READY_STATES

from celery_gpulease.demo import project
from celery_gpulease.demo.judge import Kill, Story, judge
from celery_gpulease.demo.picture import TILES, Reference, png, unpack
from celery_gpulease.demo.processes import Process, Processes
from celery_gpulease.demo.record import Witness, wipe
from celery_gpulease.demo.show import Show
from celery_gpulease.embedded import find_server, server_or_url
from celery_gpulease.exceptions import GPULeaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_gpulease.demo.record import Run

GPUS: Final = range(4)
#: Seconds that the backlog would last if no GPU were ever idle or without its worker.
BACKLOG_SECONDS: Final = 16.0
#: Seconds after which the demo stops waiting, and says what is missing.
LONGEST_START: Final = 20.0
LONGEST_BACKLOG: Final = 40.0
LONGEST_END: Final = 3.0
LOOK_EVERY: Final = 0.05

#: The kill: not before so many seconds, of a job that has run and will run for so long.
KILL_AFTER: Final = 2.5
KILL_MARGIN: Final = 0.5


#: Set by Ctrl-C, which raises nothing by itself: an exception is lost where it meets a finaliser.
interrupted: Final = threading.Event()


def interrupt(_number: int, _frame: object) -> None:
    """Ctrl-C, or a service manager's SIGTERM: the next `pause` ends the demo, and everything is cleaned up."""
    interrupted.set()


def pause() -> None:
    """Waits between two looks.

    Raises:
        KeyboardInterrupt: Somebody has asked for the end.
    """
    if interrupted.is_set():
        raise KeyboardInterrupt
    time.sleep(LOOK_EVERY)


class DemoError(RuntimeError):
    """The demo cannot start, or cannot go on."""


def play(path: Path, logs: Path | None) -> bool:
    """Runs the demo.

    Args:
        path: Where to write the picture.
        logs: Where to keep the processes' logs, if anywhere.

    Returns:
        Whether every promise held in this run.

    Raises:
        DemoError: It cannot start, or cannot go on; nothing is left running.
        EmbeddedServerError: No server is installed, or it does not start.
    """
    began = time.monotonic()
    if not os.environ.get("REDIS_URL"):
        find_server()  # first of all, says what to install
    prepare(path)
    show = Show(len(GPUS), project.TTL)
    show.intro(is_own_server=not os.environ.get("REDIS_URL"))
    reference = Reference.make()
    show.say(f"The picture, made in this one process, as a reference: {time.monotonic() - began:.1f} s.")
    try:
        with stage(logs) as (place, processes):
            performance = Performance(place, processes, show, reference)
            pixels = performance.run()
            promises = judge(performance.story)
            is_kept = all(promise.is_kept for promise in promises)
            last_words = [] if is_kept else processes.last_words()
    except GPULeaseError as error:
        raise DemoError(f"{type(error).__name__}: {error}") from error
    if pixels:
        path.write_bytes(png(pixels))
        show.picture(pixels, path)
    show.timeline(performance.story)
    show.table(performance.story)
    show.promises(promises)
    show.end(last_words, is_kept=is_kept, seconds=time.monotonic() - began)
    return is_kept


def prepare(path: Path) -> None:
    """Makes sure that the picture can be written.

    Raises:
        DemoError: It cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"the picture cannot be written: {error}") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise DemoError(f"the picture cannot be written: {path}")


@contextmanager
def stage(logs: Path | None) -> Iterator[tuple[project.Place, Processes]]:
    """A server, a folder, and what starts processes; whatever happens, nothing of them is left."""
    for name in [name for name in os.environ if name.startswith("CELERY_")]:
        del os.environ[name]  # of another project; Celery would listen to them
    with (
        server_or_url() as url,
        tempfile.TemporaryDirectory(prefix="gpulease-demo-", ignore_cleanup_errors=True) as folder,
    ):
        place = project.Place(url, f"gpulease-demo-{uuid.uuid4().hex[:8]}:", folder)
        project.configure(place)
        processes = Processes(project.__name__, Path(folder), place.environ())
        try:
            yield place, processes
            processes.stop()
        finally:
            processes.kill()
            if logs is not None:
                shutil.copytree(folder, logs, dirs_exist_ok=True)
            if os.environ.get("REDIS_URL"):
                wipe(project.gpulease.ledger, place.prefix)


class Performance:
    """One run, step by step; `story` is what happened."""

    def __init__(self, place: project.Place, processes: Processes, show: Show, reference: Reference) -> None:
        self._journal, self._processes, self._show, self._reference = place.journal, processes, show, reference
        self._witness = Witness(project.gpulease.ledger)
        self._pace = sum(reference.costs) / (len(GPUS) * BACKLOG_SECONDS)
        self._workers: dict[str, Process] = {}  # by the GPU's id
        self._seconds: dict[str, float] = {}  # what each job takes, at this pace
        self._has_told = False
        self._down_since: dict[str, float] = {}
        settings = project.gpulease.settings
        self.story = Story([], settings.lease_ttl, settings.heartbeat_interval, begin=0.0)

    def run(self) -> bytes | None:
        """Runs it; the chord's picture, None where there is none."""
        self._start()
        self._send()
        with self._show.progress(self.story, self._seconds) as draw:
            self._follow(draw)
        return self._collect()

    def _start(self) -> None:
        asked = time.monotonic()
        started = {f"demo:{gpu}": self._start_worker(gpu) for gpu in GPUS}
        self._processes.start("beat", "beat", "--loglevel", "INFO", "--pidfile=", "--schedule", self._schedule)
        for name, worker in started.items():
            self._wait_until(lambda name=name, worker=worker: self._is_served(name, worker), LONGEST_START)  # type: ignore[misc]
        self._workers = {self._witness.id_of(name): worker for name, worker in started.items()}
        self.story.gpus = list(self._workers)
        took = time.monotonic() - asked
        self._show.say(f"{len(started)} workers and beat have started: {took:.1f} s. Each GPU has its own worker:")
        self._show.say(f"  celery -A {project.__name__} worker --gpu 0   (to --gpu {GPUS[-1]})")

    def _start_worker(self, index: int) -> Process:
        return self._processes.start(f"gpu{index}", "worker", "--gpu", str(index), "--loglevel", "INFO")

    @property
    def _schedule(self) -> str:
        return str(self._journal.path.with_name("beat-schedule"))

    def _is_served(self, gpu: str, worker: Process) -> bool:
        return self._witness.is_served_by(self._witness.id_of(gpu), worker.pid)

    def _wait_until(self, is_so: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            for process in self._processes.ended():
                raise DemoError(f"{process.name} has ended. It said:\n{process.last_words()}")
            if time.monotonic() > deadline:
                words = "\n".join(self._processes.last_words())
                raise DemoError(f"the workers did not start within {seconds:.0f} s. They said:\n{words}")
            pause()

    def _send(self) -> None:
        self.story.begin = self._show.zero = time.monotonic()
        tiles = [project.render.s(tile, self._pace) for tile in TILES]
        result = chord(tiles)(project.assemble.s())
        jobs = [one.id for one in result.parent.results]
        self._picture = result.id
        forget_waiting()
        self.story.jobs = {job: f"tile {tile}" for tile, job in enumerate(jobs)} | {self._picture: "picture"}
        self._seconds |= {job: cost / self._pace for job, cost in zip(jobs, self._reference.costs, strict=True)}
        self._show.say(
            f"Sent {len(self.story.jobs)} jobs, of {min(self._seconds.values()) * 1000:.0f} ms "
            f"to {max(self._seconds.values()):.1f} s, in {time.monotonic() - self.story.begin:.2f} s."
        )

    def _follow(self, draw: Callable[[], None]) -> None:
        """Looks on until the picture is there and the killed GPU is served again; kills when the moment has come."""
        story, deadline = self.story, time.monotonic() + LONGEST_BACKLOG
        while time.monotonic() < deadline:
            story.end, story.runs = time.monotonic(), self._journal.runs()
            self._watch_outages()
            if story.kill is None and story.end - story.begin > KILL_AFTER and (victim := self._victim()):
                self._kill_worker_of(victim)
            self._notice_second_run()
            draw()
            if project.app.backend.get_state(self._picture) in READY_STATES and not self._down_since:
                break
            pause()
        story.end = time.monotonic()
        for gpu, since in self._down_since.items():
            story.outages.setdefault(gpu, []).append((since, story.end))

    def _victim(self) -> Run | None:
        """Of the jobs in the middle of their run the one with the longest way to go."""
        now = time.monotonic()
        left = {
            run: run.start + self._seconds[run.job] - now
            for run in self.story.runs
            if run.end is None and run.job in self._seconds and now - run.start > KILL_MARGIN
        }
        victim = max(left, key=left.__getitem__, default=None)
        return victim if victim is not None and left[victim] > KILL_MARGIN else None

    def _kill_worker_of(self, victim: Run) -> None:
        """SIGKILL for the worker and its job, and a new worker at once; no kill of a job that had just ended."""
        gpu, worker = victim.gpu, self._workers[victim.gpu]
        at = time.monotonic()
        worker.kill()
        self._workers[gpu] = self._start_worker(victim.index)
        self._down_since[gpu] = at
        self.story.runs = self._journal.runs()
        hit = [run for run in self.story.runs if run.gpu == gpu and run.end is None and run.job in self._seconds]
        if hit:
            self.story.kill = Kill(gpu, hit[-1].job, hit[-1].name, at)
            self._show.say(
                f"kill -9: the worker of {gpu}, {at - hit[-1].start:.1f} s into {hit[-1].name}; a new one starts."
            )

    def _watch_outages(self) -> None:
        """Ends the outage of a GPU whose new worker serves. It ended after our last look: no idle time is hidden."""
        for gpu, since in list(self._down_since.items()):
            if self._is_served(gpu, self._workers[gpu]):
                until = max(since, time.monotonic() - 2 * LOOK_EVERY)
                self.story.outages.setdefault(gpu, []).append((since, until))
                del self._down_since[gpu]
                self._show.say(f"{gpu} has a worker again, {until - since:.1f} s after the kill.")

    def _notice_second_run(self) -> None:
        again, kill = self.story.second_run(), self.story.kill
        if again and kill and not self._has_told:
            self._has_told = True
            self._show.say(
                f"{kill.name} is back: it runs on {again.gpu}, {again.start - kill.at:.1f} s after the kill."
            )

    def _collect(self) -> bytes | None:
        """Asks journal, result backend and ledger how it ended."""
        story, backend = self.story, project.app.backend
        deadline = time.monotonic() + LONGEST_END
        while (leftovers := self._witness.leftovers()) and time.monotonic() < deadline:
            pause()  # a result can be read a moment before its GPU is free
        story.leftovers = leftovers
        story.deaths = [process.name for process in self._processes.ended()]
        story.runs, story.waits = self._journal.runs(), self._witness.waits()
        story.states = {job: backend.get_state(job) for job in story.jobs}
        pixels = unpack(backend.get_result(self._picture)) if story.states[self._picture] == "SUCCESS" else None
        story.is_same_picture = pixels == self._reference.pixels
        return pixels


def forget_waiting() -> None:
    """Lets go of results that Celery keeps for whoever may wait for them: we ask, and do not wait.

    At the interpreter's end each would unsubscribe from a server that has gone, in vain and with a traceback. There is
    no public way: a group keeps result objects that it gives to nobody (celery/canvas.py, `_apply_tasks`).
    """
    for results in project.app.backend._pending_results:  # noqa: SLF001
        results.clear()
