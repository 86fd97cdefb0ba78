"""The one place for the version."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
