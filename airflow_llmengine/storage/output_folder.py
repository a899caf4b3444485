"""An output of several files: written aside first, then put in their places together."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_llmengine.spec.manifest import OutputFile
from airflow_llmengine.storage.errors import StorageChangedError, StorageNotFoundError
from airflow_llmengine.storage.filesystem import READ_BUFFER_BYTES, Location, content_identity
from airflow_llmengine.storage.inputs import data_files
from airflow_llmengine.storage.output import OutputWriter, WrittenOutput


@dataclass(slots=True)
class _Aside:
    """A file that is whole, and not yet in its place."""

    name: str
    place: Location
    records: int
    written: WrittenOutput


class OutputFolder:
    """Takes the files of a folder one after another; the folder itself is left alone until ``put``.

    No store replaces a folder at once. So nothing of it is touched before all of it is written, and what remains is
    moving files; whoever was stopped in the midst of that does it all again, from the beginning, with the same result.

    Args:
        folder: The output.
        aside: A folder of the job's scratch. Each writer has a folder of its own in it: there may be two at once.
    """

    def __init__(self, folder: Location, aside: Location) -> None:
        self._folder = folder
        self._aside = aside.child(secrets.token_hex(8))
        self._files: list[_Aside] = []

    @contextmanager
    def open(self, name: str, *, records: Callable[[], int]) -> Iterator[OutputWriter]:
        """Write the next file, which is taken when the block ends without an exception.

        Args:
            name: Its path below the folder.
            records: Asked at the end of the block how many records are in it.
        """
        place = self._aside.child(name)
        with OutputWriter(place) as writer:
            yield writer
        self._files.append(_Aside(name, place, records(), writer.close()))

    def put(self, before_each: Callable[[], None]) -> list[OutputFile]:
        """Put all files in their places, and delete the data files that are there besides.

        Args:
            before_each: Called before each file; what it raises ends it.

        Returns:
            The files as they stand.

        Raises:
            StorageError: A file can't be written, or what was written aside is gone.
        """
        files = []
        for file in self._files:
            before_each()
            etag = self._put_file(file)
            files.append(
                OutputFile(
                    name=file.name,
                    records=file.records,
                    bytes=file.written.bytes,
                    sha256=file.written.sha256,
                    etag=etag,
                )
            )
        kept = {self._folder.child(file.name).url for file in files}
        for entry in data_files(self._folder):
            if entry.url not in kept:
                before_each()
                self._folder.storage.location(entry.url).delete()
        return files

    def discard(self) -> None:
        """Delete what was written and is not in its place."""
        self._aside.delete_tree()

    def _put_file(self, file: _Aside) -> str | None:
        """Put one file in its place; gives the store's tag of it."""
        target = self._folder.child(file.name)
        try:
            if file.place.move_to(target):
                return None
            with file.place.open_read() as source, OutputWriter(target) as writer:
                shutil.copyfileobj(source, _Into(writer), READ_BUFFER_BYTES)
            written = writer.close()
        except StorageNotFoundError:
            # Somebody else has put the same files, and the job's scratch is gone with what was written aside.
            entry = target.info()
            if entry is None or content_identity(target) != f"sha256:{file.written.sha256}":
                raise
            return None if entry.identity is None else entry.identity.removeprefix("etag:")
        if written.sha256 != file.written.sha256:
            raise StorageChangedError(f"{file.place} was changed while it was put in its place: run the job again")
        return written.etag


class _Into:
    """What ``copyfileobj`` writes to."""

    def __init__(self, writer: OutputWriter) -> None:
        self.write = writer.write


def folder_digest(files: list[OutputFile]) -> str:
    """One SHA-256, in hexadecimal, of the names and the checksums of a folder's files."""
    return hashlib.sha256(json.dumps([[file.name, file.sha256] for file in files]).encode()).hexdigest()
