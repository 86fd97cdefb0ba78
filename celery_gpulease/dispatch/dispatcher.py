"""What a GPU's worker does for its GPU and, when something is due, for everybody."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery.utils.log import get_logger

from celery_gpulease.facts import facts
from celery_gpulease.ledger.answers import Closed

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_gpulease.ledger import Ledger

logger = get_logger(__name__)

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
        alias: The other name of that GPU, where its id is a UUID.
        program_fence: Of the last program that was heard of there. Redis may forget it, by an old snapshot, and offer
            the GPU: it is held back then until the program has beaten.
    """

    ledger: Ledger
    gpu: str
    is_running: Callable[[], bool]
    on_ending: Callable[[], None]
    alias: str = ""
    program_fence: int = 0

    def recall(self) -> None:
        """This worker was cut off: does Redis still know of the program that has the GPU?"""
        self.program_fence = self.ledger.recall(self.gpu, self.program_fence) or 0

    def take(self) -> float | None:
        """Claims for the GPU, if it is free; seconds until the lease in its way ends, where it ends by itself."""
        answer = self.ledger.claim(self.gpu, self.program_fence)
        if isinstance(answer, Closed) and answer.reason == "forgotten":
            self.program_fence = 0  # held back once: whatever comes then has a greater fence
        if isinstance(answer, Closed) and answer.lease_ms >= 0 and not self.is_running():
            return answer.lease_ms / 1000 + TOUCH_AFTER
        return None

    def tend(self) -> float | None:
        """Does what is due; seconds until something will be, None for never."""
        agenda = self.ledger.agenda()
        while sum(map(self._reap, agenda.lapsed)):
            agenda = self.ledger.agenda()
        while agenda.due == 0 and any(self.ledger.promote()):
            agenda = self.ledger.agenda()
        if agenda.ending == 0:
            self.on_ending()
        # an end that is due is the end writer's now; it comes back after a while when that fails
        moments = [agenda.due, agenda.ending or None]
        if agenda.deadline is not None:
            moments.append(agenda.deadline + TOUCH_AFTER + random.uniform(0, OTHERS_WAIT))  # noqa: S311
        return min((one for one in moments if one is not None), default=None)

    def _reap(self, gpu: str) -> bool:
        is_own = gpu == self.gpu and self.is_running()  # its run takes the lease back
        if is_own or self.ledger.reap(gpu) != "reaped":
            return False
        words = "The lease of GPU %s has lapsed: its worker is gone, or did not start its task, which goes back or ends"
        logger.warning(words, gpu, extra=facts(gpu=gpu))
        return True
