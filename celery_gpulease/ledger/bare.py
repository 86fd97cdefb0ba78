"""Leases and wishes that strangers have set without a TTL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from celery_gpulease.ledger.connection import in_our_words
from celery_gpulease.ledger.picture import PAGE, pttls
from celery_gpulease.ledger.views import gpu_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger.ledger import Ledger

#: A token that one of our claims made.
OUR_TOKEN: Final = re.compile(r"[0-9a-f]{32}-.+-\d+")


def bare_keys(ledger: Ledger) -> Iterator[tuple[str, str, str]]:
    """Strangers' leases and wishes that have no TTL: 'lease' or 'wish', the GPU by either name, and the key.

    Who has set them may never take them away.
    """
    keys, client = ledger.keys, ledger.client
    with in_our_words("check"):
        names = sorted(str(name) for name, _ in client.hscan_iter(keys.named("names"), count=PAGE))
        found = [("lease", name, keys.lease(name)) for name in names] + [
            ("wish", name, keys.want(name)) for name in names
        ]
        for at in range(0, len(found), PAGE):
            page = found[at : at + PAGE]
            for one, ttl in zip(page, pttls(client, (key for _, _, key in page)), strict=True):
                if ttl == -1 and not OUR_TOKEN.fullmatch(client.get(one[2]) or ""):
                    yield one


def taking_away(ledger: Ledger, what: str, gpu: str, key: str) -> str:
    """What a person does about one of `bare_keys`: `release` takes the lease that `status` shows, no other."""
    shown = (row for row in gpu_rows(ledger) if gpu in (row.id, row.name) and row.fence is None)
    is_shown = what == "lease" and any(
        row.id == gpu or not ledger.client.exists(ledger.keys.lease(row.id)) for row in shown
    )
    return f"`gpulease release {gpu} --force` takes it away" if is_shown else f"delete {key}"
