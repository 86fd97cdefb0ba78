"""Where leases, tickets and lines live: the only code that speaks Redis."""

from __future__ import annotations

from celery_gpulease.ledger.connection import is_same_server
from celery_gpulease.ledger.ledger import Ledger

__all__ = ["Ledger", "is_same_server"]
