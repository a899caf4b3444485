"""What an engine asks of the machine: how much memory is free, and the end of processes that it has started."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_CGROUP_FILES = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""Limit and usage of a container, in the second and the first version of Linux control groups."""

_PROCESS_FILES = (
    (Path("/sys/fs/cgroup/pids.max"), Path("/sys/fs/cgroup/pids.current")),
    (Path("/sys/fs/cgroup/pids/pids.max"), Path("/sys/fs/cgroup/pids/pids.current")),
)
"""The same of processes, threads counted."""


def available_processes() -> int | None:
    """How many more processes and threads the container may have; None if there is no limit."""
    return min(_left_in_container(_PROCESS_FILES), default=None)


def available_memory() -> int:
    """Bytes that a process can still take: of the machine, and of the container if it has a limit."""
    import psutil

    return min([int(psutil.virtual_memory().available), *_left_in_container(_CGROUP_FILES)])


def _left_in_container(files: Iterable[tuple[Path, Path]]) -> Iterator[int]:
    """What a container may still take, by each pair of a limit and its usage that there is."""
    for limit_file, usage_file in files:
        try:
            yield max(0, int(limit_file.read_text()) - int(usage_file.read_text()))
        except (OSError, ValueError):
            # No such file, or "max": no limit.
            continue


def end_processes(roots: Sequence[int], patience: float) -> None:
    """End processes and all that descend from them: asked first, killed when they don't.

    Args:
        roots: Process ids.
        patience: Seconds that they have after they were asked.
    """
    import psutil

    processes = [process for root in roots for process in _family(root)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _gone, alive = psutil.wait_procs(processes, timeout=patience)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=patience)


@contextlib.contextmanager
def hurrying(roots: Sequence[int], descendants_after: float, roots_after: float) -> Iterator[None]:
    """Kill what is still there while somebody waits for its end.

    Args:
        roots: Process ids.
        descendants_after: Seconds after which the processes below them are killed.
        roots_after: Seconds after which they are killed themselves.
    """
    timers = [
        threading.Timer(descendants_after, _kill, args=(roots, 1)),
        threading.Timer(roots_after, _kill, args=(roots, 0)),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def _kill(roots: Sequence[int], first: int) -> None:
    import psutil

    for root in roots:
        for process in _family(root)[first:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _family(root: int) -> list[Any]:
    """A process and then all below it; none if it is gone."""
    import psutil

    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
