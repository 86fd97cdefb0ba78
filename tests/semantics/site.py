"""A grown project at work: its workers, and what came of its calls, with Celery's task class or with GPUTask."""

import json
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

from tests.processes import Processes

PROJECT = Path(__file__).parent / "project"
HOST = "node7"


class Site:
    """One project in one database of a server."""

    def __init__(self, processes, folder):
        self.processes, self.folder = processes, folder

    def plain_worker(self, *options):
        """A worker without `--gpu`."""
        command = ("celery", "-A", "grown.app", "worker", "-c", "1", "-l", "info", *options)
        process = self.processes.start(*command, name="plain")
        process.wait_for_log(" ready.")
        return process

    def calls(self):
        """Runs the calls; what came of each, by its name."""
        return json.loads(self.processes.run("python", "-m", "grown.calls", name="calls").output)

    def journal(self):
        """What was noted of each task, in order."""
        found = defaultdict(list)
        for line in (self.folder / "grown.jsonl").read_text().splitlines():
            noted = json.loads(line)
            found[noted.pop("task")].append(noted)
        return found


@contextmanager
def site_on(url, folder, *, gpu):
    """A site whose processes all end with it."""
    folder.mkdir(exist_ok=True)
    env = {
        "GROWN_URL": url,
        "GROWN_GPU": "yes" if gpu else "no",
        "GROWN_JOURNAL": str(folder / "grown.jsonl"),
        "GPULEASE_HOST": HOST,
        "C_FORCE_ROOT": "yes",  # pickle, and containers' root
        "PYTHONPATH": str(PROJECT),
    }
    with Processes(folder, cwd=PROJECT, env=env) as processes:
        yield Site(processes, folder)
