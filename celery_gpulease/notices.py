"""Warnings that point to the user's own line, however deep in Celery they arise."""

from __future__ import annotations

import sys
import warnings
from typing import Final

#: Packages through which a call passes on its way from the user to us.
_BETWEEN: Final = frozenset({"celery", "celery_gpulease", "kombu", "vine", "contextlib", "functools"})


def warn(message: str) -> None:
    """Warns at the innermost line that is neither Celery's nor ours."""
    warnings.warn(message, UserWarning, stacklevel=_level())


def _level() -> int:
    """The `stacklevel` of that line, as `warn` counts; its caller's where there is none."""
    frame, level = sys._getframe(2), 2  # noqa: SLF001
    while frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        if frame.f_back is None:
            return 2
        frame, level = frame.f_back, level + 1
    return level
