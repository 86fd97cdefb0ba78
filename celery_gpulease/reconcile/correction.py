"""A correction, and how one that fails is kept from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_gpulease.exceptions import LedgerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

logger = get_logger(__name__)


@dataclass(frozen=True)
class Correction:
    """What was found wrong, and was put right (or would be, in a dry run).

    Attributes:
        kind: Which row of the table it is.
        detail: What was wrong, in words.
        gpu: Where, if it concerns a GPU.
        ticket: The ticket that it concerns.
        task_id: Of that ticket.
        is_corrected: False for what only people can put right: it is said, and left as it is.
    """

    kind: str
    detail: str
    gpu: str = ""
    ticket: str = ""
    task_id: str = ""
    is_corrected: bool = True

    def __str__(self) -> str:
        task = f"task {self.task_id} (ticket {self.ticket})" if self.task_id else f"ticket {self.ticket}"
        subject = (task if self.ticket else "") or self.gpu or "the server"
        return f"{subject}: {self.kind}: {self.detail}"


def isolated(what: str, corrections: Iterable[Correction]) -> Iterator[Correction]:
    """Corrections, and in words the error that ended them: the troubles of two GPUs must not hide each other.

    Raises:
        LedgerUnavailable: Redis does not answer: it would not answer the others either.
    """
    try:
        yield from corrections
    except LedgerUnavailable:
        raise
    except Exception as error:
        logger.exception("Reconciliation: %s could not be looked at; the others are", what)
        yield Correction("trouble", f"{what} could not be looked at: {error}", is_corrected=False)
