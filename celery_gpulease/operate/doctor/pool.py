"""The GPUs, their workers and who waits for them: what nobody looks after."""

from __future__ import annotations

import time
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.ledger import census
from celery_gpulease.ledger.bare import bare_keys, taking_away
from celery_gpulease.ledger.layout import LAYOUT
from celery_gpulease.ledger.types import cure, wrong_keys
from celery_gpulease.ledger.types import in_words as in_words_of
from celery_gpulease.ledger.views import gpu_rows
from celery_gpulease.operate.doctor.conf import some
from celery_gpulease.operate.doctor.finding import Finding, note
from celery_gpulease.operate.stories import moment
from celery_gpulease.operate.tables import counted
from celery_gpulease.operate.tables import seconds as in_words
from celery_gpulease.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_gpulease.ledger import Ledger
    from celery_gpulease.ledger.views import GPURow

#: Seconds by which the server's clock may be ahead of ours, or have been.
AHEAD: Final = 3600.0
#: Periods without a reconciliation.
SILENT: Final = 5
#: What to do about a line's GPUs that are all in one state.
CURES: Final = {
    "draining": "`gpulease undrain` one of them",
    "offline": "start a worker for one of them: celery worker --gpu N",
    "quarantined": "see their reasons in `gpulease status`",
}


def layout(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """All who use the ledger mean the same by its keys.

    Raises:
        OtherLayout: They do not: nothing that is there can be read.
    """
    ledger.look()
    if version := census.layout_version(ledger):
        yield note(
            f"the ledger is of layout {LAYOUT}, since version {version}; this command is of version {__version__}"
        )


def living(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Who serves."""
    gpus = gpu_rows(ledger)
    without = [gpu.name for gpu in gpus if gpu.state == "offline" or gpu.worker is None]
    named = f"; without: {some(without)}" if without else ""
    yield note(f"{counted(len(gpus), 'GPU')} registered, {len(gpus) - len(without)} with a living worker{named}")


def versions(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Workers, and this command, of one version."""
    found: dict[str, list[str]] = {}
    for one in census.presences(ledger):
        found.setdefault(one.version, []).append(one.worker)
    if not found or set(found) == {__version__}:
        return
    told = "; ".join(f"{version}: {some(sorted(workers))}" for version, workers in sorted(found.items()))
    yield Finding(
        f"this command is of version {__version__}, and workers are of other ones: {told}. They share layout {LAYOUT}, "
        "so they work beside each other",
        "install one version everywhere, then restart the workers one by one",
    )


def reconciler(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Somebody reconciles, as long as there is something to reconcile."""
    silent, interval = census.seconds_since_reconciled(ledger), ledger.settings.reconcile_interval
    if silent is None or silent <= SILENT * interval:
        return
    words = f"nobody has reconciled for {in_words(silent)} (gpulease_reconcile_interval is {interval:g} s)"
    if census.is_in_use(ledger):
        yield Finding(words, "see to it that a worker with --gpu lives, or run `celery beat`; look into their logs")
    else:
        yield note(f"{words}, and there is nothing to reconcile")


def unserved(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Lines in which somebody waits, and that no GPU serves now."""
    gpus = gpu_rows(ledger)
    for line in census.lines(ledger):
        if line.pin:
            serving = [gpu for gpu in gpus if gpu.id == line.gpu]
            whom, start = f"GPU {line.pin}", "start its worker"
        else:
            serving = [gpu for gpu in gpus if line.pool in gpu.pools]
            whom, start = f"pool {line.pool}", f"start a worker with --gpu-pools {line.pool}"
        states = sorted({gpu.state for gpu in serving})
        if not set(states) <= set(CURES):
            continue
        if states:
            why = f"its state is {states[0]}" if line.pin else f"every GPU that serves it is {' or '.join(states)}"
        else:
            why = "no worker has ever served it" if line.pin else f"no GPU has ever served it{_meant(line.pool, gpus)}"
        cure = "; ".join(CURES[state] for state in states) or start
        them = "TASK_ID` (`gpulease pending` has the ids)" if line.pin else f"--all --pool {line.pool}`"
        cancel = f", or cancel them: `gpulease cancel {them}"
        yield Finding(f"{whom} has {counted(line.length, 'task')} waiting, and {why}", cure + cancel)


def _meant(pool: str, gpus: list[GPURow]) -> str:
    """The pool that is served and called nearly so."""
    near = get_close_matches(pool, {one for gpu in gpus for one in gpu.pools}, 1)
    return f" (did you mean {near[0]}?)" if near else ""


def orphaned_queues(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Messages that nobody will ever take."""
    for key, length in census.queues_without_gpu(ledger):
        yield Finding(
            f"{key}, the queue of a GPU that does not exist (any more), has {counted(length, 'message')}",
            f"if that GPU does not come back, delete the key {key}: the ledger has what it needs of them",
        )


def types(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Keys of ours that hold something else."""
    if wrong := wrong_keys(ledger):
        yield Finding(in_words_of(wrong), cure(wrong))


def future(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Entries of the journal that are dated later than now: whatever happens after them gets their time."""
    last, now = census.last_entry_at(ledger), time.time()
    if last is not None and last > now + AHEAD:
        yield Finding(
            f"somebody has written into the journal with a time of the future ({moment(last)}), and all that happens "
            "now is dated so too: `why`, `journal --hours` and the metrics are wrong",
            f"delete {ledger.keys.named('journal')}: it begins anew, and nothing else needs it",
        )


def endless(_: Any, ledger: Ledger) -> Iterator[Finding]:
    """Strangers' leases and wishes that never end by themselves."""
    for what, gpu, key in bare_keys(ledger):
        yield Finding(
            f"{ledger.client.get(key)!r} has a {what} of GPU {gpu} without a TTL, and may keep it for ever",
            f"ask who it is; if it is gone, {taking_away(ledger, what, gpu, key)}; let it set a TTL "
            "(SET … NX PX 60000)",
        )
