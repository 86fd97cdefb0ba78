"""What is routed to one GPU where the broker is not the ledger's Redis: its worker takes it from there itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from celery_gpulease.ledger.connection import connect, in_our_words

if TYPE_CHECKING:
    from celery_gpulease.ledger.ledger import Ledger

#: Seconds beyond a wait within which the server must answer.
GRACE: Final = 5.0


class RoutedMessages:
    """Waits for the messages of one GPU, on a connection of its own.

    A message that is taken and lost, with the connection or the process, is routed once more (`Ledger.report`).

    Args:
        ledger: Of the app.
        gpu: The GPU's id.
        seconds: How long one call waits.
    """

    def __init__(self, ledger: Ledger, gpu: str, seconds: int) -> None:
        self._key, self._seconds = ledger.keys.routed(gpu), seconds
        settings = ledger.settings
        self._client = connect(
            settings.redis_url,
            settings.redis_options,
            socket_timeout=seconds + GRACE,
            decode_responses=True,
            encoding_errors="replace",
        )

    def take(self) -> str | None:
        """The next message, or None: there was none for a while.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        with in_our_words("take"):
            found = self._client.brpop([self._key], self._seconds)
        return str(found[1]) if found else None
