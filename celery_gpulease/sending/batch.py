"""A group's tasks go out together: a few round trips, and not one for each.

Celery lends a group one producer of the app's pool for all its tasks (`producer_or_acquire`). The first is held at
once, as a task that is sent alone; those after it are sent, and their answers read when that producer is given back.
What went wrong is raised then, or at one of the tasks between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from celery.exceptions import Ignore
from celery.utils.log import get_logger
from kombu.messaging import Producer
from kombu.pools import PoolGroup, ProducerPool, connections, register_group, use_global_limit
from kombu.utils.functional import retry_over_time

from celery_gpulease.dispatch.revoking import see_to
from celery_gpulease.exceptions import LedgerUnavailable
from celery_gpulease.facts import facts
from celery_gpulease.ledger.answers import Taken
from celery_gpulease.ledger.unanswered import Unanswered
from celery_gpulease.sending.tracking import tell_held
from celery_gpulease.throttled import ThrottledWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from celery.app.task import Context

    from celery_gpulease.installed import Installation
    from celery_gpulease.model import Held

logger = get_logger(__name__)

#: How many are sent before their answers are read: sockets hold only so much.
MOST: Final = 500
#: And how many characters of messages, which are kept until then.
MOST_TEXT: Final = 2**22
#: Of a policy of publishing, what `retry_over_time` takes.
_OF_RETRIES: Final = ("max_retries", "interval_start", "interval_step", "interval_max")
_unstored: Final = ThrottledWarning(
    logger, "Tasks that were revoked, which a GPU worker will store: %d, the last %s[%s]: %s"
)


@dataclass(frozen=True)
class Sending:
    """One message on its way into its line.

    Attributes:
        installed: Of the app that sends it.
        held: The message.
        request: The task's, as a result backend wants it; None where nothing is stored of it (`gpulease_track_held`).
        policy: How often it is tried; None for once.
    """

    installed: Installation
    held: Held
    request: Context | None
    policy: dict[str, Any] | None

    def send(self) -> str:
        """Holds it; see `Ledger.hold` for the answers.

        Raises:
            LedgerUnavailable: Redis does not answer, also after the retries that the policy asks for.
            Ignore: It was sent in place of a run that is lost.
        """
        answer: str = self.patiently(self._hold)
        self.settle(answer)
        return answer

    def patiently(self, ask: Callable[[], Any]) -> Any:
        """Asks the ledger as often as the policy says."""
        if self.policy is None:
            return ask()
        steps = {name: self.policy[name] for name in _OF_RETRIES if self.policy.get(name) is not None}
        return retry_over_time(ask, LedgerUnavailable, **steps)

    def settle(self, answer: str) -> None:
        """Does what an answer asks for; see `send`."""
        one = self.held
        known = facts(task_id=one.task_id, gpu=one.pin, pool=one.pool)
        logger.debug("%s[%s] of pool %s: %s", one.task, one.task_id, one.pool, answer, extra=known)
        if answer == "revoked":
            _end_revoked(self.installed, self.held)
        if answer == "lost":
            message = "this run was lost: its retry or replacement is not sent"
            raise Ignore(message)

    def _hold(self) -> str:
        if self.request is not None:
            tell_held(self.installed, self.held, self.request)
        return self.installed.ledger.hold(self.held)


def _end_revoked(installed: Installation, one: Held) -> None:
    """It was revoked before it was sent. What fails here is done by a worker: the task is held."""
    if one.run_ticket:  # the run has yet to store its RETRY: a worker waits for that
        return
    taken = Taken(one.ticket, one.task_id, one.task, has_run=False)
    try:
        trouble = see_to(installed.app, installed.ledger, [taken])
    except LedgerUnavailable as error:
        trouble = error
    if trouble:
        _unstored.add(one.task, one.task_id, trouble)


class Batch:
    """What is sent through one producer while it is lent."""

    def __init__(self) -> None:
        self._is_first = True
        self._sent: list[Sending] = []
        self._unanswered: Unanswered | None = None
        self._text = 0

    def send(self, one: Sending, *, is_of_a_group: bool) -> None:
        """Sends one; see `Sending.send`. What is raised may be of one before it."""
        if self._is_first or not is_of_a_group or one.request is not None:
            one.send()
        else:
            self._send_on(one)
        self._is_first = False

    def _send_on(self, one: Sending) -> None:
        if self._sent and one.installed is not self._sent[0].installed:
            self.collect()
        if self._unanswered is None:
            self._unanswered = Unanswered(one.installed.ledger)
        self._sent.append(one)
        self._text += len(one.held.message)
        self._unanswered.send(one.held)
        if len(self._sent) >= MOST or self._text >= MOST_TEXT or self._unanswered.is_cut:
            self.collect()

    def collect(self) -> None:
        """Waits for the answers; see `Sending.send`."""
        sent, unanswered = self._sent, self._unanswered
        self._sent, self._unanswered, self._text = [], None, 0
        if unanswered is not None:
            for one, answer in zip(sent, sent[0].patiently(unanswered.answers), strict=True):
                one.settle(answer)


class BatchingProducer(Producer):
    """A producer of the app's pool.

    Attributes:
        lent: What is sent through it; None while nobody has it by `with`.
    """

    lent: Batch | None = None

    def __enter__(self) -> Any:
        self.lent = Batch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        batch, self.lent = self.lent, None
        try:
            if batch is not None:
                batch.collect()
        finally:
            super().__exit__(kind, error, trace)


class _BatchingProducers(PoolGroup):
    """The pools of all apps, by connection, as kombu has them: forked, limited and reset with its own."""

    def create(self, connection: Any, limit: int) -> ProducerPool:
        return ProducerPool(connections[connection], limit=limit, Producer=BatchingProducer)


producers: Final = register_group(_BatchingProducers(limit=use_global_limit))  # type: ignore[no-untyped-call]


def is_of_a_group(headers: dict[str, Any], body: Any) -> bool:
    """Is it a group's task, or the first of a chain in a group?"""
    if headers.get("group"):
        return True
    rest = body[2].get("chain")  # the last comes first
    return bool(rest and rest[0].get("options", {}).get("group_id"))
