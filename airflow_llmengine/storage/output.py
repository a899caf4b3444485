"""The output while it is being written."""

from __future__ import annotations

import hashlib
import logging
from types import TracebackType
from typing import NamedTuple, Self

from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Location

log = logging.getLogger(__name__)


class WrittenOutput(NamedTuple):
    """What stands now; the manifest is made of it."""

    bytes: int
    sha256: str
    """In hexadecimal."""
    etag: str | None
    """The store's own tag of the object; None on a file system."""


class OutputWriter:
    """Streams the output to its place, where it appears whole when closed, and not at all otherwise.

    Used in a ``with`` block it is closed at the end, or discarded when the block ends with an exception.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.size = 0
        """Bytes taken so far."""
        self._digest = hashlib.sha256()
        self._pending = location.open_write()
        self._result: WrittenOutput | None = None
        self._discarded = False

    def write(self, data: bytes) -> None:
        """Take more of the output."""
        if self._result is not None or self._discarded:
            raise ValueError("write to an output that is closed or discarded")
        self._pending.write(data)
        self._digest.update(data)
        self.size += len(data)

    def close(self) -> WrittenOutput:
        """Make the output visible, in the place of what was there. A second call gives the same again."""
        if self._discarded:
            raise ValueError("close of an output that is discarded")
        if self._result is None:
            etag = self._pending.commit()
            self._result = WrittenOutput(self.size, self._digest.hexdigest(), etag)
        return self._result

    def discard(self) -> None:
        """Throw away what was written, unless it is closed already; what stood in its place before still stands."""
        if self._result is None and not self._discarded:
            self._discarded = True
            self._pending.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and not self._discarded:
            try:
                self.close()
            except BaseException:
                self._discard_quietly()
                raise
        elif kind is not None:
            self._discard_quietly()

    def _discard_quietly(self) -> None:
        try:
            self.discard()
        except StorageError as failure:  # the first failure is the one to tell of
            log.debug("%s", failure)
