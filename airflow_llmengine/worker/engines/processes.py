"""What an engine asks of the machine: how much memory is free, and the end of processes that it has started."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

_CGROUP_FILES = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""Limit and usage of a container, in the second and the first version of Linux control groups."""


def available_memory() -> int:
    """Bytes that a process can still take: of the machine, and of the container if it has a limit."""
    import psutil

    available = int(psutil.virtual_memory().available)
    for limit_file, usage_file in _CGROUP_FILES:
        try:
            limit, usage = int(limit_file.read_text()), int(usage_file.read_text())
        except (OSError, ValueError):
            # No such file, or "max": no limit.
            continue
        available = min(available, max(0, limit - usage))
    return available


def end_processes(roots: Iterable[int], patience: float) -> None:
    """End processes and all that descend from them: asked first, killed when they don't.

    Args:
        roots: Process ids.
        patience: Seconds that they have after they were asked.
    """
    import psutil

    processes = []
    for root in roots:
        try:
            process = psutil.Process(root)
            processes += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    deadline = time.monotonic() + patience
    for process in processes:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _gone, alive = psutil.wait_procs(processes, timeout=max(0.0, deadline - time.monotonic()))
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=patience)
