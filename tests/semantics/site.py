"""A grown project at work: its workers, and what came of its calls, with Celery's task class or with GPUTask."""

import json
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import Processes

PROJECT = Path(__file__).parent / "project"
HOST = "node7"
#: Noted by hooks and handlers in the process that runs a task, in an order that is Celery's to choose; what other
#: processes note may come a moment earlier or later.
IN_THE_RUN = ("prerun", "before_start", "call", "timed", "timed task", "body", "on_success", "on_retry", "on_failure")
IN_THE_RUN += ("after_return", "postrun")


@dataclass
class Call:
    """What came of one call: what its sender sees, and what was noted of it."""

    outcome: dict
    run: list
    signals: list


class Site:
    """One project on one server."""

    def __init__(self, processes, folder):
        self.processes, self._journal = processes, folder / "grown.jsonl"

    def start_plain_worker(self):
        """A worker without `--gpu`, which need not be ready yet."""
        command = ("celery", "-A", "grown.app", "worker", "-c", "1", "-l", "info")
        return self.processes.start(*command, name="plain")

    def calls(self):
        """Makes all calls; what came of each, by its name."""
        outcomes = json.loads(self.processes.run("python", "-m", "grown.calls", name="calls").output)
        noted = self._noted()
        found = {}
        for name, outcome in outcomes.items():
            lines = noted[outcome.pop("id")]
            run = [line for line in lines if line["what"] in IN_THE_RUN]
            found[name] = Call(outcome, run, [line["what"] for line in lines if line not in run])
        return found

    def _noted(self):
        found = defaultdict(list)
        for line in self._journal.read_text().splitlines():
            noted = json.loads(line)
            found[noted.pop("task")].append(noted)
        return found


@contextmanager
def site_on(url, folder, *, gpu):
    """A site whose processes all end with it."""
    env = {
        "GROWN_URL": url,
        "GROWN_GPU": "yes" if gpu else "no",
        "GROWN_JOURNAL": str(folder / "grown.jsonl"),
        "GPULEASE_HOST": HOST,
        "C_FORCE_ROOT": "yes",  # pickle, in a container's root
        "PYTHONPATH": str(PROJECT),
    }
    with Processes(folder, cwd=PROJECT, env=env) as processes:
        yield Site(processes, folder)
