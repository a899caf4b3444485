"""One file of a checkpoint on its way from the store, in ranges, which are kept when the worker dies over it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
from pathlib import Path
from typing import IO

from airflow_llmengine.storage.errors import StorageChangedError, StorageError, StorageNotFoundError
from airflow_llmengine.worker.engines.base import ModelNotFoundError
from airflow_llmengine.worker.weights.checkpoint import CheckpointFile
from airflow_llmengine.worker.weights.fetch_progress import FetchProgress

logger = logging.getLogger(__name__)

RANGE_BYTES = 16 * 2**20
"""What is asked for at once. Each of the fetch's threads holds one such range in memory."""

HEADER_LIMIT = 100 * 2**20
"""Most bytes of the header of a safetensors file: a bound of that format."""


class FileFetch:
    """Fetches the ranges of one file, in any order and from several threads, and puts it into place with the last.

    A range that has arrived is noted, with a hash of its content, after it was written. Who comes later believes no
    note without reading the range again, so neither a kill nor a power cut leaves anything wrong. Two processes at the
    same file write the same bytes, since what they write is named after the file's content (see ``folder``).

    Args:
        file: The file.
        target: Where it is to stand.
        scratch: Folder for what is not finished, of this checkpoint alone.
        progress: Is told of each range.
    """

    def __init__(self, file: CheckpointFile, target: Path, scratch: Path, progress: FetchProgress) -> None:
        self._file = file
        self._target = target
        key = hashlib.sha256(file.name.encode()).hexdigest()[:32]
        self._partial = scratch / f"{key}.partial"
        self._notes = scratch / f"{key}.ranges"
        self._progress = progress
        self._arrived = self._read_notes()
        self._left = self.ranges
        self._lock = threading.Lock()

    @property
    def ranges(self) -> int:
        """How many there are; of an empty file one."""
        return max(1, -(-self._file.size // RANGE_BYTES))

    @property
    def is_in_place(self) -> bool:
        """Whether the file stands where it belongs, checked when it was put there."""
        return _size(self._target) == self._file.size

    @property
    def bytes_kept(self) -> int:
        """Bytes that an unfinished fetch takes up on the disk already."""
        with contextlib.suppress(FileNotFoundError):
            return self._partial.stat().st_blocks * 512
        return 0

    def prepare(self) -> None:
        """Make what is not there yet, and keep what is."""
        self._partial.touch()
        os.truncate(self._partial, self._file.size)

    def fetch(self, index: int) -> None:
        """Fetch one range, unless an earlier worker has; the last one puts the file into place.

        Raises:
            StorageError: It can't be read, or was changed since it was listed.
            ModelNotFoundError: What has arrived is no whole file of its kind.
            OSError: It can't be written here.
        """
        start = index * RANGE_BYTES
        end = min(self._file.size, start + RANGE_BYTES)
        try:
            if self._stands(index, start, end):
                self._progress.add(end - start, found=True)
            else:
                self._take(index, start, end)
                self._progress.add(end - start)
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last:
                self._finish()
        except FileNotFoundError:
            # Without locks, another process may have put it into place meanwhile.
            if not self.is_in_place:
                raise

    def _take(self, index: int, start: int, end: int) -> None:
        content = self._read(start, end)
        with self._partial.open("r+b") as partial:
            partial.seek(start)
            partial.write(content)
        note = f"{index} {hashlib.sha256(content).hexdigest()}\n"
        with self._notes.open("a") as notes:
            notes.write(note)

    def _read(self, start: int, end: int) -> bytes:
        if start == end:
            return b""
        try:
            return self._file.location.read_part(start, end, self._file.identity)
        except (StorageChangedError, StorageNotFoundError) as error:
            # It was there, and another, when it was listed.
            raise self._changed() from error

    def _stands(self, index: int, start: int, end: int) -> bool:
        noted = self._arrived.get(index)
        if noted is None:
            return False
        with self._partial.open("rb") as partial:
            partial.seek(start)
            stands = hashlib.sha256(partial.read(end - start)).hexdigest() == noted
        if not stands:
            logger.info("what an earlier worker left of %s is damaged: that part is fetched again", self._file.name)
        return stands

    def _read_notes(self) -> dict[int, str]:
        """Hashes of the ranges that have arrived, by number. A line that was cut off is none."""
        try:
            lines = self._notes.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        notes = (line.split(" ") for line in lines)
        return {int(note[0]): note[1] for note in notes if len(note) == 2 and note[0].isdecimal()}

    def _finish(self) -> None:
        """Check the whole file, and put it into place."""
        entry = self._file.location.info()
        if entry is None or entry.identity != self._file.identity:
            raise self._changed()
        if entry.md5 is not None:
            self._compare(entry.md5)
        with self._partial.open("r+b") as partial:
            if self._file.name.endswith(".safetensors"):
                self._check_safetensors(partial)
            os.fsync(partial.fileno())
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._partial.replace(self._target)
        self._notes.unlink(missing_ok=True)

    def _compare(self, expected: str) -> None:
        """Compare the content with the store's checksum; if it differs, fetch it once more."""
        first = self._md5()
        if first == expected:
            return
        logger.warning("%s did not arrive as the store has it, and is fetched again", self._file.location)
        for index in range(self.ranges):
            start = index * RANGE_BYTES
            self._take(index, start, min(self._file.size, start + RANGE_BYTES))
        second = self._md5()
        if second == expected:
            return
        if second != first:
            self._notes.unlink(missing_ok=True)
            raise StorageError(f"Cannot read {self._file.location}: it arrived differently each time; try again later.")
        # Twice the same: some stores that look like S3 have etags that only look like a checksum.
        logger.info("%s arrives the same each time, and its etag seems to be no checksum", self._file.location)

    def _md5(self) -> str:
        with self._partial.open("rb") as partial:
            return hashlib.file_digest(partial, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

    def _check_safetensors(self, partial: IO[bytes]) -> None:
        """Whether the header fits the size: it says where the last tensor ends."""
        length = int.from_bytes(partial.read(8), "little")
        end = None
        if 0 < length <= min(HEADER_LIMIT, self._file.size - 8):
            try:
                header = json.loads(partial.read(length))
                ends = [int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"]
                end = 8 + length + max(ends, default=0)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
                end = None
        if end != self._file.size:
            raise ModelNotFoundError(
                f"model_config.checkpoint_path: {self._file.location} is not a whole safetensors file: put it there "
                "again"
            )

    def _changed(self) -> StorageChangedError:
        return StorageChangedError(
            f"Cannot fetch {self._file.location}: the checkpoint was changed while it was fetched; run the job again "
            "once it is whole."
        )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
