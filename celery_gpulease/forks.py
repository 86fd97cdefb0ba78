"""No thread of ours is inside Celery when a worker forks a child: that child would find Celery's locks closed for ever.

A fork copies locks as they are, and the one thread that forks. Whatever another thread held stays held in the child,
which hangs where it needs it: kombu's `cached_property` takes a lock at each access, one for all objects of a class
(kombu/utils/objects.py). Celery's pool forks in the main thread, whenever a child has died; our threads are beside it.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds that a fork waits: a result backend that does not answer must not keep the worker from its GPU.
LONGEST: Final = 3.0

_gate = threading.Condition()
_inside: set[int] = set()  # threads
#: That wait, or are made: who comes later enters after them, else threads that take turns would keep them out.
_forks = 0


@contextmanager
def apart_from_forks() -> Iterator[None]:
    """While a thread is in here, no fork happens, but for one that has waited for too long; not to be nested."""
    me = threading.get_ident()
    with _gate:
        _gate.wait_for(lambda: not _forks)
        _inside.add(me)
    try:
        yield
    finally:
        with _gate:
            _inside.discard(me)
            _gate.notify_all()


def let_forks_pass() -> None:
    """Between two things of many that a thread does in there: a fork that waits is made first."""
    me = threading.get_ident()
    with _gate:
        if _forks and me in _inside:
            _inside.discard(me)
            _gate.notify_all()
            _gate.wait_for(lambda: not _forks)
            _inside.add(me)


def _before() -> None:
    global _forks  # noqa: PLW0603
    _gate.acquire()
    _forks += 1
    me = threading.get_ident()
    _gate.wait_for(lambda: not _inside - {me}, LONGEST)


def _in_parent() -> None:
    global _forks  # noqa: PLW0603
    _gate.notify_all()
    _forks -= 1
    _gate.release()


def _in_child() -> None:
    global _gate, _forks
    _gate, _forks = threading.Condition(), 0
    _inside.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
