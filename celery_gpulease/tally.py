"""What a process counts of itself, for whoever asks: plain numbers, without any library of metrics."""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

#: Values that the labels of one measure may have in all; what comes then counts as `OTHER`, so that nobody's words
#: fill the memory.
MOST_LABELS: Final = 1000
OTHER: Final = "other"


@dataclass(frozen=True)
class Measure:
    """One metric, by Prometheus' conventions.

    Attributes:
        name: With its unit; a counter's ends with `_total`.
        help: What it is, in a sentence.
        labels: Their names. Never a task's id.
        buckets: The upper bounds of a histogram's; empty for what is none.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def is_counter(self) -> bool:
        """Does it only grow?"""
        return self.name.endswith("_total")


@dataclass
class Distribution:
    """How often each bucket of a histogram was met, what lies above the last one included; not cumulated."""

    counts: list[int]
    total: float = 0.0


#: The values of one measure, by those of its labels.
Values: TypeAlias = "Mapping[tuple[str, ...], float | Distribution]"


@dataclass
class Tally:
    """Counts and distributions, by measure and labels; any thread may count."""

    _values: dict[Measure, dict[tuple[str, ...], float | Distribution]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, measure: Measure, *labels: str, by: float = 1.0) -> None:
        """Adds to a counter; `by=0` makes it known, so that its first step is seen as one."""
        with self._lock:
            values, key = self._place(measure, labels)
            before = values.get(key, 0.0)
            assert not isinstance(before, Distribution)  # noqa: S101
            values[key] = before + by

    def observe(self, measure: Measure, value: float, *labels: str) -> None:
        """Adds one value to a histogram."""
        with self._lock:
            values, key = self._place(measure, labels)
            found = values.setdefault(key, Distribution([0] * (len(measure.buckets) + 1)))
            assert isinstance(found, Distribution)  # noqa: S101
            found.counts[bisect_left(measure.buckets, value)] += 1
            found.total += value

    def readings(self) -> list[tuple[Measure, Values]]:
        """All that was counted, as it is now."""
        with self._lock:
            return [
                (measure, {key: _copy(one) for key, one in found.items()}) for measure, found in self._values.items()
            ]

    def _place(
        self, measure: Measure, labels: tuple[str, ...]
    ) -> tuple[dict[tuple[str, ...], float | Distribution], tuple[str, ...]]:
        values = self._values.setdefault(measure, {})
        is_room = labels in values or len(values) < MOST_LABELS
        return values, labels if is_room else (OTHER,) * len(labels)


def _copy(one: float | Distribution) -> float | Distribution:
    return Distribution(list(one.counts), one.total) if isinstance(one, Distribution) else one
