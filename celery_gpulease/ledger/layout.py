"""The layout of the ledger: what its keys are, and what everybody means by them.

Workers, senders and commands of several versions meet in one Redis while an upgrade goes on. Those of one layout work
beside each other, in any mixture. The number of the layout is kept in the ledger itself, and versions of two layouts do
not meet: whoever comes as the second is refused, and told why and what to do.

**When must it grow?** By one, with each change after which a process of the version before, which goes on beside us,
would do wrong, or break, or be misunderstood:

- a key, or a field of a hash, that gets another name, type, unit or meaning, or that others now need to be there;
- a new state of a ticket or a claim, or another order of a line;
- a new key per ticket or GPU that the older version's scripts would leave behind for ever;
- another form of what one process writes and another reads: the envelope in `message:<id>`, the header `gpulease`, a
  token, a presence, the rows of the journal, a word in a `here` channel that must not be overheard.

**When not?** Each process brings its own scripts, so their arguments, replies and ways do not matter. Neither does a
key or field that the older version leaves alone, and without which the newer one does as before.

The version in which it grows must be able to work on from what an *unused* ledger of the layout before has left (no
living worker, no task): journal, counters, fences, registered GPUs. Where it is not, it removes or rewrites them there.
"""

from __future__ import annotations

from typing import Final

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.version import __version__

#: Of this version. See above when to raise it.
LAYOUT: Final = 1


class OtherLayout(ConfigurationError):
    """The ledger is of a layout that this version must not touch; the message names both versions and the cure."""


def refusal(prefix: str, its: int, version: str) -> str:
    """Why a ledger of another layout is none for us, and what to do."""
    ledger = f"the ledger under gpulease_key_prefix = {prefix!r} is of layout {its}"
    theirs = f", which celery_gpulease {version} made so" if version else ""
    ours = f"this is celery_gpulease {__version__}, of layout {LAYOUT}"
    elsewhere = "or give this one another gpulease_key_prefix, and GPUs of its own"
    if its > LAYOUT:
        return f"{ledger}{theirs}; {ours}. Install that version here, or a newer one; {elsewhere}"
    return (
        f"{ledger}{theirs}, and in use: its workers live, or tasks wait in it; {ours}. Stop its senders, let what is "
        f"held there end (or cancel it), stop its workers, then start this one; {elsewhere}"
    )
