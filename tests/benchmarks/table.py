"""What `make bench` prints: tables, of which every line stands beside what a user would pick instead."""

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """One part of it.

    Attributes:
        title: What was measured, and how.
        columns: Their names; the first is who was measured.
        lines: A text for each column.
    """

    title: str
    columns: tuple[str, ...]
    lines: list[tuple[str, ...]]

    def markdown(self):
        """As README has it."""
        rows = [self.columns, tuple("---" for _ in self.columns), *self.lines]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(row) + " |" for row in rows), ""])

    def with_column(self, name, texts):
        """This table with one more column: who was measured → the text."""
        lines = [(*line, texts[line[0]]) for line in self.lines]
        return Table(self.title, (*self.columns, name), lines)


def beside(title, rounds, unit="ms", scale=1000.0):
    """A table of durations: each variant's median and p99 over its rounds, as multiples of the first variant's.

    Args:
        title: What was measured.
        rounds: Variant → its rounds, each a list of seconds. The first variant is what a user would pick instead.
        unit: In which they are printed.
        scale: How many of that unit a second has.
    """
    lines, base = [], None
    for who, measured in rounds.items():
        median = statistics.median(statistics.median(one) for one in measured)
        p99 = statistics.median(percentile(one, 0.99) for one in measured)
        base = base or (median, p99)
        times = [f"{found / of:.2f}x" if of else "" for found, of in zip((median, p99), base, strict=True)]
        lines.append((who, f"{median * scale:.3g} {unit}", times[0], f"{p99 * scale:.3g} {unit}", times[1]))
    return Table(title, ("", "median", "", "p99", ""), lines)


def percentile(values, part):
    """The value that this part of all is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(part * len(ordered)) - 1))]


def short(number):
    """As people write it."""
    return f"{number:,}".replace(",", " ")
