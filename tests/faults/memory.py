"""Control groups, so that the kernel's out-of-memory killer comes: only where this user may make them."""

import os
from pathlib import Path

import pytest

#: Where the memory of a group is limited: version 1, and version 2.
KINDS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}


def memory_root() -> Path:
    """Where a group with a limit can be made; the test is skipped where there is no such place."""
    for root, limit in KINDS.items():
        probe = Path(root) / f"gpulease-probe-{os.getpid()}"
        try:
            probe.mkdir(exist_ok=True)
        except OSError:
            continue
        has_limit = (probe / limit).exists() and os.access(probe / limit, os.W_OK)
        probe.rmdir()
        if has_limit:
            return Path(root)
    pytest.skip("this user may not make control groups that limit memory")


def limit_memory(name: str, pids: list[int], most: int) -> Path:
    """Puts processes in a group that may have so many bytes more."""
    root = memory_root()
    group = root / f"gpulease-{name}"
    group.mkdir()
    (group / KINDS[str(root)]).write_text(str(most))
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))
    return group
