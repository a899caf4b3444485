"""Turns for local workers: so many at once on one machine, since two would each ask for most of one GPU.

A slot is a lock file. Whoever holds its lock has the slot; the worker inherits the open file, so that the slot stays
taken while the worker lives, even if the task that started it is gone. The system frees it when the last of them ends.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 0.5
REMINDER_SECONDS = 300.0
"""How often a task that waits says that it still does."""


class SlotDirectoryError(Exception):
    """The directory of the lock files can't be used; the message says why and what to do."""


class NoFreeSlotError(Exception):
    """The time to wait for a slot is over."""


def runtime_directory(configured: str = "") -> Path:
    """The directory of the lock files, made if it is not there.

    Args:
        configured: Where it is; by default a directory of this user's own under the system's temporary directory.

    Raises:
        SlotDirectoryError: It can't be made, or another user could put files into the default one.
    """
    path = Path(configured) if configured else Path(tempfile.gettempdir()) / f"airflow-llmengine-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=bool(configured), exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise SlotDirectoryError(
            f"{path} can't be used for the lock files of local workers ({error.strerror}): set [llmengine] "
            "runtime_directory to a directory that can be written."
        ) from error
    # The temporary directory is everybody's: somebody else may have been there first.
    if not configured and (not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise SlotDirectoryError(
            f"{path} is not a directory that only this user can write: remove it, or set [llmengine] "
            "runtime_directory to one that is."
        )
    return path


class WorkerSlot:
    """A slot that was taken. The worker must inherit ``fileno()``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The open lock file."""
        return self._descriptor

    def release(self) -> None:
        """Close this process's hold on it; a worker that inherited the file keeps its own."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def take_slot(
    directory: Path,
    slots: int,
    *,
    holder: str,
    deadline: float,
    check: Callable[[], None],
    log: Callable[[str], None],
) -> WorkerSlot:
    """Take one of so many slots, and wait for it if all are taken.

    Args:
        directory: Where the lock files are.
        slots: How many workers may run at once.
        holder: What to call this one in the log of those that wait.
        deadline: Seconds since the epoch until which to wait.
        check: Called while waiting; what it raises ends the wait.
        log: Takes a sentence for the log.

    Raises:
        NoFreeSlotError: No slot was free before the deadline.
        SlotDirectoryError: The lock files can't be written.
    """
    reminded = None
    while True:
        check()
        for number in range(slots):
            descriptor = _try(directory / f"worker-{number}.lock", holder)
            if descriptor is not None:
                if reminded is not None:
                    log("A worker slot is free; going on.")
                return WorkerSlot(descriptor)
        now = time.time()
        if now >= deadline:
            raise NoFreeSlotError(f"All {slots} worker slots of this machine were taken until the deadline.")
        if reminded is None or now - reminded >= REMINDER_SECONDS:
            reminded = now
            held_by = ", ".join(_holder(directory / f"worker-{number}.lock") for number in range(slots))
            log(f"Waiting for a worker slot: this machine runs {slots} at once, and {held_by} has it.")
        time.sleep(min(POLL_SECONDS, max(0.0, deadline - now)))


def _try(path: Path, holder: str) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SlotDirectoryError(
            f"The lock file {path} can't be opened ({error.strerror}): set [llmengine] runtime_directory to a "
            "directory that this user can write."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, holder.encode("utf-8", "replace"), 0)
    return descriptor


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or "another task"
    except OSError:
        return "another task"
