"""What the demo shows: plain words, a progress bar, and at the end a picture, a timeline and two tables."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.color import Color
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.style import Style
from rich.table import Table
from rich.text import Text

from celery_gpulease.demo.judge import in_words, longest_idle
from celery_gpulease.demo.picture import HEIGHT, WIDTH, colour
from celery_gpulease.demo.spans import common, total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery_gpulease.demo.judge import Promise, Story
    from celery_gpulease.demo.record import Run

INTRO: Final = """\
[bold]celery_gpulease gives each GPU to one Celery task at a time.[/]
This shows it at work on this machine, in half a minute:

  1. {server},
     {gpus} workers for {gpus} GPUs and a beat are started, as real processes.
  2. A backlog of jobs is sent: the tiles of one picture, in a chord.
  3. One worker is killed with SIGKILL in the middle of a job, and restarted.
     Its lease lasts {ttl:.0f} s without a heartbeat; then its job must come back.
  4. What happened is judged: was a job lost, did two meet on one GPU, was a
     GPU idle while somebody waited, how long did the killed job take?

No GPU is needed: a job makes its tile on the processor, held back to the pace
of a small GPU, so that four of them fit on a small machine.
"""
PREVIEW_WIDTH: Final = 72
LONGEST_LINE: Final = 110
LABEL: Final = 12

#: Two runs that follow one another differ, with colours or without.
RUNS: Final = (("█", "cyan"), ("▓", "blue"))
KILLED: Final = ("▒", "red")
KILL: Final = ("✗", "bold red")
AGAIN: Final = ("▚", "green")
NO_WORKER: Final = ("·", "dim")
IDLE: Final = (" ", "")


class Show:
    """Tells a person what happens; in a pipe, only what they would want to read later.

    Attributes:
        zero: When the jobs were sent; what is said from then on has its time in front.
    """

    def __init__(self, gpus: int, ttl: float) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr] # a terminal without UTF-8
        self._console = Console(highlight=False)
        self._gpus, self._ttl = gpus, ttl
        self.zero: float | None = None

    def intro(self, *, is_own_server: bool) -> None:
        """The first lines: what is going to happen."""
        server = "A Redis server of its own" if is_own_server else "On the Redis server that REDIS_URL names"
        self._console.print(INTRO.format(server=server, gpus=self._gpus, ttl=self._ttl))

    def say(self, text: str) -> None:
        """One line."""
        when = "" if self.zero is None else f"{time.monotonic() - self.zero:5.1f} s  "
        self._console.print(Text(when + text))

    @contextmanager
    def progress(self, story: Story, seconds: dict[str, float]) -> Iterator[Callable[[], None]]:
        """A bar for all jobs and one for each GPU, while the block lasts; yields what draws them anew.

        Args:
            story: What happens.
            seconds: What each job is expected to take.
        """
        if not self._console.is_terminal:
            yield lambda: None
            return
        columns = TextColumn("{task.description}"), BarColumn(36), TextColumn("{task.fields[note]}")
        with Progress(*columns, console=self._console, transient=True) as bars:
            jobs = bars.add_task("jobs", total=len(story.jobs), note="")
            gpus = {gpu: bars.add_task(gpu, total=1.0, note="") for gpu in story.gpus}

            def draw() -> None:
                done = sum(run.is_finished for run in story.runs)
                bars.update(jobs, completed=done, note=f"{done} of {len(story.jobs)}")
                now = time.monotonic()
                for gpu, bar in gpus.items():
                    run = current(story, gpu)
                    share = (now - run.start) / seconds.get(run.job, 1.0) if run else 0.0
                    bars.update(bar, completed=min(share, 1.0), note=run.name if run else "")

            yield draw

    def picture(self, pixels: bytes, path: Path) -> None:
        """A small preview, two pixels in a character, where there are colours; and where the picture is."""
        if self._console.is_terminal and self._console.color_system in ("256", "truecolor"):
            width = min(PREVIEW_WIDTH, self._console.width - 1)
            height = width * HEIGHT // WIDTH // 2
            for line in range(height):
                self._console.print(preview_line(pixels, line, width, height))
        self._console.print(Text(f"The picture: {path.resolve()}\n"), soft_wrap=True)

    def timeline(self, story: Story) -> None:
        """Every GPU from left to right, from the sending of the jobs to the picture."""
        width = min(self._console.width - 1, LONGEST_LINE) - LABEL
        step = (story.end - story.begin) / width
        for gpu in story.gpus:
            line = Text(f"{gpu[-LABEL + 2 :]:<{LABEL}}")
            for column in range(width):
                line.append(*cell(story, gpu, story.begin + column * step, story.begin + (column + 1) * step))
            self._console.print(line)
        length = f"{story.end - story.begin:.1f} s"
        self._console.print(Text(" " * LABEL + "0 s" + length.rjust(width - 3)))
        legend = Text(" " * LABEL)
        words = (
            ("jobs", *RUNS),
            ("killed job", KILLED),
            ("kill -9", KILL),
            ("no worker", NO_WORKER),
            ("it is back", AGAIN),
        )
        for word, *marks in words:
            for mark in marks:
                legend.append(*mark)
            legend.append(f" {word}  ")
        self._console.print(legend, "", sep="\n")

    def table(self, story: Story) -> None:
        """What each GPU did."""
        table = Table("GPU", title_justify="left")
        for head in ("jobs done", "busy", "longest idle while one waited", "without a worker"):
            table.add_column(head, justify="right")
        counts = Counter(run.gpu for run in story.runs if run.is_finished)
        for gpu in story.gpus:
            outage = total(common(story.outages.get(gpu, []), [(story.begin, story.end)]))
            idle = in_words(longest_idle(story, gpu))
            away = in_words(outage) if outage else "-"
            table.add_row(gpu, str(counts[gpu]), f"{story.busy_share(gpu):.0%}", idle, away)
        self._console.print(table)

    def promises(self, promises: list[Promise]) -> None:
        """What was promised and whether it was kept."""
        table = Table("", "promise", "in this run")
        for promise in promises:
            mark = Text("kept", "green") if promise.is_kept else Text("BROKEN", "bold red")
            table.add_row(mark, promise.name, promise.finding)
        self._console.print(table)

    def end(self, last_words: list[str], *, is_kept: bool, seconds: float) -> None:
        """The last line; before it, where something went wrong, what the processes said last."""
        for words in last_words:
            self._console.print(Text(words))
        text = f"Every promise held in this run, which took {seconds:.0f} s; nothing is left running."
        if not is_kept:
            text = "A promise was broken in this run. Its logs: run it again with --logs FOLDER."
        self._console.print(Text(text, "bold green" if is_kept else "bold red"))


def current(story: Story, gpu: str) -> Run | None:
    """What runs on a GPU now."""
    running = [run for run in story.runs if run.gpu == gpu and story.span(run)[1] >= story.end and run.end is None]
    return running[-1] if running else None


def cell(story: Story, gpu: str, begin: float, end: float) -> tuple[str, str]:
    """One character of the timeline, and its style: what filled most of this time."""
    kill = story.kill
    if kill and kill.gpu == gpu and begin <= kill.at < end:
        return KILL
    runs = [run for run in story.runs if run.gpu == gpu]
    shares = [(total(common([(begin, end)], [story.span(run)])), number) for number, run in enumerate(runs)]
    most, number = max(shares, default=(0.0, 0))
    away = total(common([(begin, end)], story.outages.get(gpu, [])))
    if away > sum(share for share, _ in shares):
        return NO_WORKER
    if not most:
        return IDLE
    if kill and runs[number].job == kill.job:
        return KILLED if runs[number].start < kill.at else AGAIN
    return RUNS[number % 2]


def preview_line(pixels: bytes, line: int, width: int, height: int) -> Text:
    """One line of the preview."""
    text = Text()
    for column in range(width):
        x = column * WIDTH // width
        upper, lower = (pixels[(2 * line + half) * HEIGHT // (2 * height) * WIDTH + x] for half in (0, 1))
        text.append("▀", Style(color=Color.from_rgb(*colour(upper)), bgcolor=Color.from_rgb(*colour(lower))))
    return text
