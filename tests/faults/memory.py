"""Control groups, so that the kernel's out-of-memory killer comes: only where this user may make them."""

import os
from pathlib import Path

#: Where the memory of a group is limited: version 1, and version 2.
KINDS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}


def memory_root() -> Path | None:
    """Where this user may make a group with a limit."""
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
    return None


def limit_memory(name: str, pids: list[int], most: int) -> None:
    """Puts processes in a new group that may have so many bytes more."""
    root = memory_root()
    group = root / f"gpulease-{name}-{len(groups(name))}"
    group.mkdir()
    (group / KINDS[str(root)]).write_text(str(most))
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))


def groups(name: str) -> list[Path]:
    """Those that were made under this name."""
    root = memory_root()
    return [*root.glob(f"gpulease-{name}-*")] if root else []


def forget_limits(name: str) -> None:
    """Removes these groups; their processes must be gone."""
    for group in groups(name):
        group.rmdir()
