"""A table's file of which parts are read: what Arrow asks for, and nothing else."""

from __future__ import annotations

import io
from typing import Any

from airflow_llmengine.storage.filesystem import FileEntry, Location
from airflow_llmengine.worker.readers.errors import InputChangedError
from airflow_llmengine.worker.readers.unchanged import UnchangedFile, changed


class RandomAccessFile(io.RawIOBase):
    """A file that can be read anywhere, and of which nothing is handed out once it is another one than was listed.

    Of an object in a store each read is one request for that range. A local file stays open.

    Args:
        location: Where it is.
        entry: What it was when it was listed.

    Raises:
        InputChangedError: It is another one now.
        StorageError: It can't be read.
    """

    def __init__(self, location: Location, entry: FileEntry) -> None:
        super().__init__()
        self._location = location
        self._entry = entry
        self._position = 0
        self._local = UnchangedFile(location, entry) if location.is_local else None
        if self._local is None:
            now = location.info()
            if now is None or (now.size, now.identity) != (entry.size, entry.identity):
                raise changed(location)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place, counted from the beginning, from here, or from the end."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._entry.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """So many bytes, less only at the end; all that is left by default."""
        left = max(0, self._entry.size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        if not wanted:
            return b""
        if self._local is None:
            data = self._location.read_part(self._position, self._position + wanted, self._entry.identity)
        else:
            data = self._local.read_at(self._position, wanted)
        if len(data) < wanted:
            raise InputChangedError(
                f"The input {self._location} is shorter than when it was listed: run the job again."
            )
        self._position += wanted
        return data

    def readinto(self, buffer: Any, /) -> int:
        """As ``read``, into memory that is given."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file."""
        if self._local is not None and not self.closed:
            self._local.close()
        super().close()
