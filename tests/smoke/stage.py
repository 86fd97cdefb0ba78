"""What a smoke test does: send tasks that run until they are told to end, and see where each of them runs."""

import json
from dataclasses import dataclass
from typing import Any

from celery.result import AsyncResult
from pytest_celery import CeleryTestSetup, CeleryTestWorker

from tests.smoke.containers import HOST
from tests.smoke.tasks import hold
from tests.waiting import wait_until

#: Deadlines of tests, not promises: containers on two cores take their time.
LONG = 60.0


@dataclass
class Run:
    """One run of a task, as it told it when it began."""

    gpu: str
    index: int
    fence: int
    pid: int
    visible: str


class Stage:
    """A broker, a result backend, and the workers of two GPUs."""

    def __init__(self, setup: CeleryTestSetup) -> None:
        self.setup, self._redis = setup, setup.backend.container.client

    def send(self, **options: Any) -> AsyncResult:
        """Sends a task."""
        return self.setup.app.tasks[hold.name].apply_async(**options)

    def run_of(self, task: AsyncResult, number: int = 1) -> Run:
        """Waits until a task has begun for this time."""
        wait_until(lambda: self.how_often(task) >= number, LONG, f"run {number} of {task.id}")
        return Run(**json.loads(self._redis.lindex(f"runs:{task.id}", number - 1)))

    def how_often(self, task: AsyncResult) -> int:
        """How often it has begun."""
        return self._redis.llen(f"runs:{task.id}")

    def end(self, *tasks: AsyncResult) -> list[str]:
        """Lets tasks end; their results: the ids of the GPUs that they ended on."""
        for task in tasks:
            self._redis.set(f"end:{task.id}", 1)
        return [task.get(timeout=LONG) for task in tasks]

    def worker(self, gpu: str) -> CeleryTestWorker:
        """Whose GPU this is."""
        return self.setup.worker_cluster[self.gpus.index(gpu)]

    @property
    def gpus(self) -> list[str]:
        """Their ids."""
        return [f"{HOST}:{index}" for index in range(len(self.setup.worker_cluster))]

    def other(self, gpu: str) -> str:
        """The one that it is not."""
        (other,) = {*self.gpus} - {gpu}
        return other

    def ask(self, worker: CeleryTestWorker, what: str) -> Any:
        """What `gpulease … --json` says in a worker's container."""
        code, (out, err) = worker.container.exec_run(f"celery -A app gpulease {what} --json", demux=True)
        assert code == 0, (out, err)
        return json.loads(out)
