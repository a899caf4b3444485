"""One worker at a time, among those that share a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
WAITING_LINE_SECONDS = 60.0
"""How often a worker that waits says so."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What a file system answers that knows no locks, as some network file systems do."""


@contextlib.contextmanager
def one_at_a_time(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is not there.

    The kernel, or the file server, frees the lock when its holder dies; nothing has to be cleaned up. Whoever waits is
    in no call that could not be ended: a worker that is told to stop ends meanwhile.

    Where the file system knows no locks, a line says so, and whoever comes goes on: what is done inside must bear that,
    at the price of doing it twice.

    Args:
        path: The lock file. It stays.
        what: What is done inside, for the log: ``the fetch of ...``.

    Raises:
        OSError: The file can't be made or opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _acquire(descriptor, path, what)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, what: str) -> None:
    started = time.monotonic()
    said = 0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - started
            if waited >= said * WAITING_LINE_SECONDS:
                said += 1
                logger.info("waiting for another worker, which is at %s (%.0f s so far)", what, waited)
            time.sleep(POLL_SECONDS)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            logger.warning(
                "the file system of %s knows no file locks: workers that begin together may each do %s",
                path.parent,
                what,
            )
            return
        else:
            return
