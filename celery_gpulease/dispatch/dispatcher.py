"""What a GPU's worker does for its GPU and, when something is due, for everybody."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_gpulease.ledger.ledger import Closed

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.ledger import Ledger

#: Redis takes a key for expired one millisecond after its deadline.
TOUCH_AFTER: Final = 0.001
#: The owner of a GPU looks at its lease first; the others wait up to this many seconds more, so that there is no herd.
OTHERS_WAIT: Final = 0.2


@dataclass
class Dispatcher:
    """Claims for one GPU, and tends what is due: lapsed leases, due and expired tickets.

    Attributes:
        ledger: The ledger.
        gpu: The GPU that it claims for.
        is_running: Does this GPU's worker run a task now? Its lapsed lease is then regained, not reaped.
        on_ending: Called where an end is to be written outside Redis.
    """

    ledger: Ledger
    gpu: str
    is_running: Callable[[], bool]
    on_ending: Callable[[], None]

    def take(self) -> float | None:
        """Claims for the GPU, if it is free; seconds until the lease in its way ends, where it ends by itself."""
        answer = self.ledger.claim(self.gpu)
        if isinstance(answer, Closed) and answer.lease_ms >= 0 and not self.is_running():
            return answer.lease_ms / 1000 + TOUCH_AFTER
        return None

    def tend(self) -> float | None:
        """Does what is due; seconds until something will be, None for never."""
        agenda = self.ledger.agenda()
        for gpu in agenda.lapsed:
            if gpu != self.gpu or not self.is_running():
                self.ledger.reap(gpu)
        if agenda.due == 0:
            self.ledger.promote()
        if agenda.ending == 0:
            self.on_ending()
        if agenda.lapsed or agenda.due == 0:
            agenda = self.ledger.agenda()
        deadline = agenda.deadline and agenda.deadline + TOUCH_AFTER + random.uniform(0, OTHERS_WAIT)  # noqa: S311
        return min((one for one in (deadline, agenda.due, agenda.ending) if one), default=None)
