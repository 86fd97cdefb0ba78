"""Checkpoints that a late writer cannot spoil."""

import os
from collections.abc import Callable
from pathlib import Path

from celery_gpulease.exceptions import LeaseLost


class Checkpoints:
    """The checkpoints of one training, each named by the fence under which it was written.

    A run that lost its GPU (its host slept, or the network was cut) may wake when the next run has long begun. Fences
    grow from claim to claim, on any GPU, as the clock of Redis does: so the newest run has the highest, its checkpoint
    is the one that counts, and whoever finds a higher one than its own comes too late. That check and the writing are
    not one step, and need not be: a late writer only ever writes under its own number, which nobody reads any more.

    Args:
        folder: Where they are.
        name: The training's.
        fence: That of the run which writes; None only reads.
    """

    def __init__(self, folder: Path, name: str, fence: int | None = None) -> None:
        """Makes the folder if need be."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name, self._fence = folder, name, fence or 0

    def newest(self) -> Path | None:
        """That of the newest run which has written one."""
        return max(self._folder.glob(f"{self._name}.*.pt"), key=fence_of, default=None)

    def write(self, save: Callable[[Path], None]) -> None:
        """Writes one, whole or not at all, and removes those of earlier runs.

        Raises:
            LeaseLost: A later run has written: this one comes too late.
        """
        newest = self.newest()
        if newest and fence_of(newest) > self._fence:
            message = f"{self._name} runs elsewhere by now: {newest.name} is newer than {self._fence}"
            raise LeaseLost(message)
        mine = self._folder / f"{self._name}.{self._fence}.pt"
        unfinished = mine.with_suffix(".tmp")
        save(unfinished)
        os.replace(unfinished, mine)  # noqa: PTH105
        for earlier in self._folder.glob(f"{self._name}.*.pt"):
            if fence_of(earlier) < self._fence:
                earlier.unlink(missing_ok=True)


def fence_of(checkpoint: Path) -> int:
    """The fence under which it was written."""
    return int(checkpoint.name.split(".")[-2])
