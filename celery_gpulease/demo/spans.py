"""Spans of time: lists of (begin, end), sorted and without overlap once they went through `union`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Span: TypeAlias = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """The time that is in any of them."""
    found: list[Span] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def common(some: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """The time that is in both."""
    others = union(others)
    return union((max(a, c), min(b, d)) for a, b in union(some) for c, d in others)


def without(some: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """The time that is in the first and not in the second."""
    left = union(some)
    for begin, end in union(others):
        left = [part for a, b in left for part in ((a, min(b, begin)), (max(a, end), b)) if part[0] < part[1]]
    return left


def total(spans: Iterable[Span]) -> float:
    """How long they are, together."""
    return sum(end - begin for begin, end in union(spans))
