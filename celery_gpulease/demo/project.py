"""The demo's Celery project, as a user would write one: an app, `GPULease(app)`, and two GPU tasks."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from celery import Celery
from celery.signals import worker_process_init

from celery_gpulease import GPULease, GPUTask
from celery_gpulease.demo import picture
from celery_gpulease.demo.record import Journal

#: Tells the workers and beat where they are; the demo sets it.
VARIABLE: Final = "GPULEASE_DEMO"
TTL: Final = 5.0

app: Any = Celery("celery_gpulease.demo")
gpulease = GPULease(app)


@dataclass(frozen=True)
class Place:
    """Where one run of the demo happens.

    Attributes:
        url: The Redis of broker, results and leases.
        prefix: In front of every key there: a server that others use too is left as it was.
        folder: For logs and the journal.
    """

    url: str
    prefix: str
    folder: str

    def environ(self) -> dict[str, str]:
        """The environment of a worker or beat: ours, but nothing of another Celery project or of a scheduler's GPUs."""
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("CELERY_", "CUDA_VISIBLE"))}
        # the pool of a killed worker leaves a folder where temporary files go
        return ours | {VARIABLE: json.dumps(asdict(self)), "GPULEASE_HOST": "demo", "TMPDIR": self.folder}

    @property
    def journal(self) -> Journal:
        """What the tasks write down."""
        return Journal(Path(self.folder) / "journal")


def configure(place: Place) -> None:
    """Sets the app up for this place."""
    url = place.url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")  # in kombu's words
    app.conf.update(
        broker_url=url,
        result_backend=url,
        broker_transport_options={"global_keyprefix": place.prefix},
        result_backend_transport_options={"global_keyprefix": place.prefix},
        broker_connection_retry_on_startup=True,
        gpulease_key_prefix=place.prefix + "gpu:",
        gpulease_lease_ttl=TTL,
        gpulease_reconcile_interval=TTL,
    )


if VARIABLE in os.environ:
    here = Place(**json.loads(os.environ[VARIABLE]))
    configure(here)


@worker_process_init.connect
def leave_the_processor_to_others(**_: Any) -> None:
    """Four jobs share this machine's processors with server and workers; on a real GPU they would not."""
    os.nice(10)


@app.task(base=GPUTask, bind=True)
def render(self: Any, tile: int, pace: float) -> str:
    """Makes one tile, row by row.

    Args:
        self: The task.
        tile: Which one.
        pace: Iterations per second of the GPU that it pretends to use: where the processor is faster, it waits.
    """
    with here.journal.run(self, f"tile {tile}"):
        began, rows = time.monotonic(), b""
        for row in picture.tile_rows(tile):
            self.lease.check()
            rows += row
            time.sleep(max(0.0, began + picture.cost(rows) / pace - time.monotonic()))
        return picture.pack(rows)


@app.task(base=GPUTask, bind=True)
def assemble(self: Any, tiles: list[str]) -> str:
    """Puts the tiles together; the chord calls it when all are made."""
    with here.journal.run(self, "picture"):
        return picture.pack(picture.assemble([picture.unpack(tile) for tile in tiles]))
