"""HOLDs that are on their way: Redis does each at once, and their sender waits for all answers together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from celery_gpulease.ledger.ledger import Ledger
    from celery_gpulease.model import Held


class Unanswered:
    """Sends messages into their lines and reads what was answered later.

    Args:
        ledger: Their ledger. One of its client's connections is taken until the answers have been read.

    Attributes:
        is_cut: Its connection is lost.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held: list[Held] = []
        self._answers: list[str] = []
        self._client: Any = None  # of one connection
        self.is_cut = False

    def send(self, held: Held) -> None:
        """Sends one; what goes wrong here is made good, or told, by `answers`."""
        self._held.append(held)
        if self.is_cut:
            return
        try:
            self._client = self._client or self._ledger.client.client()
            # a health check would take the answer to a HOLD for that to its ping
            self._client.connection.send_command(*self._ledger.hold_command(held), check_health=False)
        except redis.exceptions.RedisError:
            self._cut()
        except BaseException:  # of a signal's handler, or a greenlet's: its caller has gone away
            self._cut()
            raise

    def answers(self) -> list[str]:
        """Waits for all, and sends once more what was not answered; may be called again where it fails.

        Raises:
            LedgerUnavailable: Redis does not answer. Some may be held.
        """
        try:
            self._read()
        except redis.exceptions.RedisError:
            self._cut()
        except BaseException:  # of a signal's handler, or a greenlet's: its caller has gone away
            self._cut()
            raise
        for held in self._held[len(self._answers) :]:
            self._answers.append(self._ledger.hold(held))
        return self._answers

    def _read(self) -> None:
        while not self.is_cut and len(self._answers) < len(self._held):
            self._answers.append(str(self._client.connection.read_response()[0]))
        self._give_back()

    def _cut(self) -> None:
        """Nobody reads its answers any more."""
        self.is_cut = True
        if self._client is not None:
            self._client.connection.disconnect()
            self._give_back()

    def _give_back(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
