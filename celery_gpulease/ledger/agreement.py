"""All who use one ledger agree on its layout: asked before a process changes anything there."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError

from celery_gpulease.ledger import scripts
from celery_gpulease.ledger.layout import LAYOUT, OtherLayout, refusal
from celery_gpulease.version import __version__


def look(client: Any, prefix: str) -> None:
    """Sees to it that the ledger is of our layout, or could be; changes nothing.

    Raises:
        OtherLayout: It is of another one, and in use, or newer.
    """
    _ask(client, prefix, takes=False)


def agree(client: Any, prefix: str) -> bool:
    """The same, and where the ledger has no number yet, or nobody uses it any more, it is of our layout from now on.

    A process of the version before may still think that it has agreed, and go on sending. So the server's scripts are
    forgotten first: that process must send its own again, which makes it ask (`Calls.agree`).

    Returns:
        Is it of our layout? Else it must be asked again.

    Raises:
        OtherLayout: It is of another one, and in use, or newer.
    """
    word, its = _ask(client, prefix, takes=False)
    if word == "agreed":
        return True
    if its < LAYOUT:
        _forget_scripts(client)
    try:
        _ask(client, prefix, takes=True)
    except ResponseError:  # the server writes nothing now, as the operation, if it is to write, will say
        return False
    return True


def _ask(client: Any, prefix: str, *, takes: bool) -> tuple[str, int]:
    """Is it 'agreed', or is the ledger 'open' to become ours; and of which layout it is."""
    source = scripts.source("agree")
    values = {"layout": LAYOUT, "version": __version__, "takes": "1" if takes else ""}
    word, *found = client.register_script(source.text)(keys=[prefix], args=scripts.arguments_of(source, values))
    if word == "other":
        raise OtherLayout(refusal(prefix, int(found[0]), str(found[1])))
    return str(word), int(found[0]) if found else LAYOUT


def _forget_scripts(client: Any) -> None:
    with suppress(ResponseError):  # an ACL without +script|flush: then it is as said, stop the senders first
        client.script_flush()
