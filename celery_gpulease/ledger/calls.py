"""How an operation of the ledger is called: one script, one round trip."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

from celery_gpulease.ledger import agreement, scripts
from celery_gpulease.ledger.connection import connect, in_our_words, timeout_for
from celery_gpulease.ledger.kept import Kept
from celery_gpulease.ledger.keys import Keys
from celery_gpulease.model import PRIORITIES, QUEUE_PREFIX, unique

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_gpulease.settings import Settings


class Calls:
    """A client of the ledger's Redis, and its scripts.

    Args:
        settings: Where it is, and how its keys begin.
        queue_prefix: What stands before a queue's name in this Redis (kombu's `global_keyprefix`), where it is the
            broker too: this app's workers then take what is routed to them out of a queue. None where it is not: they
            take it from `routed:<gpu>`.
        highest_first: The broker serves its highest priority first, as RabbitMQ does.
    """

    def __init__(self, settings: Settings, queue_prefix: str | None = "", *, highest_first: bool = False) -> None:
        self.settings = settings
        self.keys = Keys(settings.key_prefix)
        self.queue_prefix, self.highest_first = queue_prefix, highest_first
        self._clients: dict[int, Any] = {}  # by pid
        self._kept: dict[int, Kept] = {}  # by pid
        self._scripts: dict[str, Any] = {}
        self._has_agreed = False

    @property
    def is_broker(self) -> bool:
        """Are the broker's queues in this Redis?"""
        return self.queue_prefix is not None

    def route_to(self, gpu: str) -> str:
        """The list from which this app's worker of a GPU takes its messages."""
        return self.keys.routed(gpu) if self.queue_prefix is None else f"{self.queue_prefix}{QUEUE_PREFIX}{gpu}"

    @property
    def client(self) -> Any:
        """A redis.Redis that answers in text, of this process.

        A child that was forked while another thread of its parent was at the client has that one's locks, closed for
        ever: redis-py's pool takes its old lock before it makes a new one (`ConnectionPool.reset`). So the parent's is
        kept, since its end would take the lock too, and never used.
        """
        pid = os.getpid()
        if pid not in self._clients:
            self._clients[pid] = connect(
                self.settings.redis_url,
                {"socket_timeout": timeout_for(self.settings.heartbeat_interval), **self.settings.redis_options},
                decode_responses=True,
                encoding_errors="replace",
            )
        return self._clients[pid]

    def rank(self, priority: int) -> int:
        """The place that a priority of the broker's has among ours, of which 0 comes first; and the way back."""
        return PRIORITIES[-1] - priority if self.highest_first else priority

    def agree(self) -> None:
        """Sees to it that whoever else uses this ledger means the same by its keys (ledger/layout.py).

        A process asks before its first change, and again where Redis has forgotten its scripts, since it may have been
        emptied, or made another layout's. It is part of an operation, which has the words for Redis' troubles.

        Raises:
            ConfigurationError: The ledger is of another layout.
        """
        self._has_agreed = False
        self._has_agreed = agreement.agree(self.client, self.keys.prefix)

    def look(self) -> None:
        """The same for who only reads: nothing is changed.

        Raises:
            ConfigurationError: The ledger is of another layout.
        """
        with in_our_words("look"):
            agreement.look(self.client, self.keys.prefix)

    def _claiming(self, name: str, **values: Any) -> list[Any]:
        """A script that may make a claim: it needs a seed for tokens."""
        return self._call(name, **values, seed=unique())

    def _command(self, name: str, **values: Any) -> list[Any]:
        """The same, as Redis is told of it; it must have the script already."""
        values_in_order = scripts.arguments_of(scripts.source(name), {**values, "seed": unique()})
        return ["EVALSHA", self._script(name).sha, 1, self.keys.prefix, *values_in_order]

    def _claiming_each(self, name: str, many: Iterable[dict[str, Any]]) -> list[list[Any]]:
        """The same, once for each of these values, in one round trip."""
        one = scripts.source(name)
        with in_our_words(name):
            if not self._has_agreed:
                self.agree()
            with self.client.pipeline(transaction=False) as pipe:
                for values in many:
                    given = {**values, "seed": unique()}
                    self._script(name)(keys=[self.keys.prefix], args=scripts.arguments_of(one, given), client=pipe)
                answers: list[list[Any]] = pipe.execute()
        return answers

    def _call(self, name: str, **values: Any) -> list[Any]:
        script, values_in_order = self._script(name), scripts.arguments_of(scripts.source(name), values)
        answer: list[Any]
        with in_our_words(name):
            if not self._has_agreed:
                self.agree()
            try:
                answer = self._connections().ask("EVALSHA", script.sha, 1, self.keys.prefix, *values_in_order)
            except NoScriptError:
                self.agree()
                answer = script(keys=[self.keys.prefix], args=values_in_order, client=self.client)
        return answer

    def about(self, name: str, names: Sequence[str]) -> list[Any]:
        """What a script that takes any number of names says of them."""
        with in_our_words(name):
            answer: list[Any] = self._script(name)(keys=[self.keys.prefix], args=list(names), client=self.client)
        return answer

    def _connections(self) -> Kept:
        pid = os.getpid()
        if pid not in self._kept:
            self._kept[pid] = Kept(self.client)
        return self._kept[pid]

    def _script(self, name: str) -> Any:
        if name not in self._scripts:
            self._scripts[name] = self.client.register_script(scripts.source(name).text)
        return self._scripts[name]
