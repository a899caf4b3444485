"""A private, nameless file on this machine's disk, which is appended to as long as there is room.

It has no name, so that nothing is left of it whatever ends this process. What was appended last waits in memory: a
process that appends little never touches the disk.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

BUFFER_BYTES = 2**20
"""What waits in memory before it is written."""

SHARE_OF_FREE = 4
"""The file may take one part in so many of what is free on its disk, itself included."""

MOST_BYTES = 16 * 2**30

MOST_BYTES_IN_MEMORY = 64 * 2**20
"""Where temporary files are in memory (tmpfs), which is the worker's own."""


class LocalFile:
    """Appended to and read from at any place. It never fails: what it can't hold or give, it says so. One thread.

    Args:
        most_bytes: What it may hold; less where the disk has little room.
        folder: Where it is; by default where temporary files are.
    """

    def __init__(self, most_bytes: int | None = None, folder: Path | None = None) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._file: IO[bytes] | None = None
        self._written = 0
        """Bytes that are in the file."""
        self._pending = bytearray()
        """Bytes that come after those."""
        self.full = False
        """Whether nothing more is taken."""

    def append(self, data: bytes) -> int | None:
        """Add bytes at the end.

        Returns:
            The place at which they begin; None: there is no room for them, nor for anything more.
        """
        if self.full:
            return None
        place = self._written + len(self._pending)
        self._pending += data
        if len(self._pending) >= BUFFER_BYTES:
            self._write()
        return place

    def read(self, place: int, size: int) -> bytes:
        """Bytes from a place on; fewer if there are no more, or if the disk does not give them."""
        if place >= self._written:
            start = place - self._written
            return bytes(self._pending[start : start + size])
        if self._file is None:
            return b""
        try:
            data = os.pread(self._file.fileno(), min(size, self._written - place), place)
        except OSError as error:
            self._give_up(error)
            return b""
        return data + self._pending[: max(0, place + size - self._written)]

    def close(self) -> None:
        """Free its room. It takes nothing more, and holds nothing."""
        self.full = True
        self._pending.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self) -> None:
        """Write what waits. If that fails it goes on waiting, and nothing more is taken."""
        try:
            if self._file is None:
                # Only now: there may be no folder at all for temporary files.
                self._folder = self._folder or Path(tempfile.gettempdir())
                self._most_bytes = min(self._most_bytes or MOST_BYTES, _most_bytes_in(self._folder))
                # As long as there are records; ``close`` closes it.
                self._file = tempfile.TemporaryFile(prefix="llmengine-", dir=self._folder)  # noqa: SIM115
            descriptor = self._file.fileno()
            disk = os.fstatvfs(descriptor)
            room = (self._written + disk.f_bavail * disk.f_frsize) // SHARE_OF_FREE
            size = len(self._pending)
            if self._written + size > min(room, self._most_bytes or MOST_BYTES):
                self.full = True
                logger.info("no more answers are kept on the local disk: %d bytes are as much as it may take", size)
                return
            done = 0
            while done < size:
                done += os.pwrite(descriptor, self._pending[done:], self._written + done)
        except OSError as error:
            self._give_up(error)
            return
        self._written += size
        self._pending.clear()

    def _give_up(self, error: OSError) -> None:
        self.full = True
        where = f" ({self._folder})" if self._folder else ""
        logger.warning("answers can't be kept on the local disk%s: %s", where, error.strerror)


def _most_bytes_in(folder: Path) -> int:
    """What a file in a folder may take, by the kind of its file system."""
    try:
        mounts = [line.split(" ")[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return MOST_BYTES
    place = folder.resolve()
    kinds = {Path(mount): kind for mount, kind in mounts}
    kind = next((kinds[above] for above in (place, *place.parents) if above in kinds), "")
    return MOST_BYTES_IN_MEMORY if kind in ("tmpfs", "ramfs") else MOST_BYTES
