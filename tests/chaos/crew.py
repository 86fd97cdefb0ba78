"""The workers of a chaos, each started again when it has ended, as a service manager does."""

import os
import time
from pathlib import Path

from tests.chaos.actor import Actor
from tests.faults.world import HOST, PROJECT

#: Where the project is, which adds tasks to the fault tests' own; and this package.
PATH = [str(Path(__file__).parent / "project"), str(PROJECT), str(Path(__file__).parents[2])]
POOLS = ("default", "a100", "small")
#: GPU → what is said on its worker's command line.
WORKERS = {
    0: ("--gpu-pools", "default"),
    1: ("--gpu-pools", "default,small"),
    2: ("--gpu-pools", "a100,default"),
    3: ("--gpu-pools", "a100", "--pool", "threads"),
    4: ("--gpu-pools", "small", "--pool", "solo"),
    5: ("--gpu-pools", "small,a100"),
}
GPUS = [f"{HOST}:{gpu}" for gpu in WORKERS]


class Crew(Actor):
    """Starts the workers, and again what has ended: after a moment, as it may be refused for a ttl.

    Attributes:
        workers: By GPU, also one that has just ended.
        ready: The GPUs whose workers are up.
    """

    def __init__(self, chaos):
        super().__init__(chaos, "crew", every=0.5)
        self.workers, self.ready, self._again_at = {}, set(), {}

    def begin(self):
        """All at once."""
        for gpu in WORKERS:
            self._start(gpu)
        self.plain = self._start_plain()

    def act(self):
        """Looks at all of them."""
        for gpu, worker in list(self.workers.items()):
            if worker.exit_code is None:
                self._look_if_ready(gpu, worker)
                continue
            if gpu not in self._again_at:
                self.say(f"the worker of GPU {gpu} has ended: {worker.exit_code} ({worker.name})")
                self._again_at[gpu] = time.monotonic() + self.chance.uniform(0, 2)
            if time.monotonic() >= self._again_at[gpu]:
                self._again_at.pop(gpu)
                worker.close()
                self._start(gpu)

    def victim(self, chance):
        """A worker that lives, None where there is none; it draws one number, whoever lives."""
        chosen = chance.choice(sorted(WORKERS))
        candidates = [self.workers[chosen], *self.workers.values()]
        return next((worker for worker in candidates if worker.exit_code is None), None)

    def _look_if_ready(self, gpu, worker):
        if gpu not in self.ready and " ready." in worker.log:
            self.ready.add(gpu)

    def _start(self, gpu):
        self.ready.discard(gpu)
        command = ("celery", "-A", "chaos_tasks", "worker", "--gpu", str(gpu), "-l", "info", *WORKERS[gpu])
        self.workers[gpu] = self._start_process(command, f"gpu{gpu}")
        self.chaos.count("worker starts")
        self.say(f"{self.workers[gpu].name} has pid {self.workers[gpu].pid}")

    def _start_plain(self):
        command = ("celery", "-A", "chaos_tasks", "worker", "-c", "1", "-n", "plain@x", "-l", "info")
        return self._start_process(command, "plain", TEST_CONF=self.chaos.plain_conf)

    def _start_process(self, command, name, **env):
        return self.chaos.world.processes.start(*command, name=name, PYTHONPATH=os.pathsep.join(PATH), **env)
