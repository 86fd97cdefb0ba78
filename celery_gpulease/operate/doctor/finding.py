"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that goes wrong, or could, and how it is mended; or a note, which is only good to know.

    Attributes:
        what: In words.
        cure: What to do; empty for a note, and where the words say it themselves.
        is_note: Nothing is wrong.
    """

    what: str
    cure: str = ""
    is_note: bool = False


def note(what: str) -> Finding:
    """What is good to know."""
    return Finding(what, is_note=True)
