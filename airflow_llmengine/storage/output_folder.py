"""An output of several files: written aside first, then put in their places together."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from airflow_llmengine.spec.manifest import OutputFile
from airflow_llmengine.storage.errors import StorageChangedError, StorageNotFoundError, StorageUnsupportedError
from airflow_llmengine.storage.filesystem import READ_BUFFER_BYTES, FileEntry, Location, content_identity
from airflow_llmengine.storage.inputs import data_files
from airflow_llmengine.storage.output import OutputWriter, WrittenOutput


class FolderFile:
    """A file of a folder while it is being written. Whoever writes it counts its records."""

    def __init__(self, name: str, place: Location) -> None:
        self.name = name
        """Its path below the folder."""
        self.records = 0
        self.aside = place
        self.writer = OutputWriter(place)

    def write(self, data: bytes) -> None:
        """Take more of the file."""
        self.writer.write(data)


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
        self._files: list[FolderFile] = []

    @contextmanager
    def open(self, name: str) -> Iterator[FolderFile]:
        """Write the next file, of that path below the folder; it is taken when the block ends without an exception."""
        file = FolderFile(name, self._aside.child(name))
        with file.writer:
            yield file
        self._files.append(file)

    def put(self, before_each: Callable[[], None]) -> list[OutputFile]:
        """Put all files in their places, and delete the data files that are there besides.

        Args:
            before_each: Called before each file; what it raises ends it.

        Returns:
            The files as they stand.

        Raises:
            StorageUnsupportedError: A folder of it is a link.
            StorageError: A file can't be written, or what was written aside is gone.
        """
        refuse_linked_folders(self._folder, [file.name for file in self._files])
        files = [self._put_file(file, before_each) for file in self._files]
        self._delete_others({self._folder.child(file.name).url for file in files}, before_each)
        return files

    def discard(self) -> None:
        """Delete what was written and is not in its place."""
        self._aside.delete_tree()

    def _put_file(self, file: FolderFile, before: Callable[[], None]) -> OutputFile:
        before()
        written = file.writer.close()
        return OutputFile(
            name=file.name,
            records=file.records,
            bytes=written.bytes,
            sha256=written.sha256,
            etag=_move(file.aside, self._folder.child(file.name), written),
        )

    def _delete_others(self, kept: Container[str], before_each: Callable[[], None]) -> None:
        for entry in data_files(self._folder):
            if entry.url not in kept:
                before_each()
                self._folder.storage.location(entry.url).delete()
        if self._folder.is_local:
            _delete_empty_folders(self._folder)


def refuse_linked_folders(folder: Location, names: Iterable[str] = ()) -> None:
    """Make sure that what is put into an output, and deleted from it, is in it.

    Whoever put a link there would have this user write, and delete, where it leads to.

    Args:
        folder: The output.
        names: Paths below it of files that are to be put there, beside those that stand there.

    Raises:
        StorageUnsupportedError: One of its folders is a link.
    """
    if not folder.is_local:
        return
    start = len(folder.url_below)
    parts = {name.rpartition("/")[0] for name in chain(names, (entry.url[start:] for entry in data_files(folder)))}
    for below in sorted(parts):
        path = Path(folder.url)
        for part in below.split("/"):
            path /= part
            if part and path.is_symlink():
                raise StorageUnsupportedError(f"The folder {path} of the output is a link: delete it.")


def _delete_empty_folders(folder: Location) -> bool:
    """Delete the folders below one in which nothing is left; says whether there is anything else in it."""
    left = [name for name in folder.folders() if _delete_empty_folders(folder.child(name))]
    if left or folder.list():
        return True
    folder.delete_tree()
    return False


def _move(aside: Location, target: Location, expected: WrittenOutput) -> str | None:
    """Put one file in its place; gives the store's tag of it."""
    try:
        if aside.move_to(target, expected.etag):
            return None if expected.etag is None else _etag(target.info())
        with aside.open_read() as source, OutputWriter(target) as writer:
            shutil.copyfileobj(source, writer, READ_BUFFER_BYTES)
        written = writer.close()
    except StorageNotFoundError:
        # Somebody else has put the same files, and the job's scratch is gone with what was written aside.
        entry = target.info()
        if entry is None or content_identity(target) != f"sha256:{expected.sha256}":
            raise
        return _etag(entry)
    if written.sha256 != expected.sha256:
        raise StorageChangedError(f"{aside} was changed while it was put in its place: run the job again")
    return written.etag


def _etag(entry: FileEntry | None) -> str | None:
    return None if entry is None or entry.identity is None else entry.identity.removeprefix("etag:")


def folder_digest(files: list[OutputFile]) -> str:
    """One SHA-256, in hexadecimal, of the names and the checksums of a folder's files."""
    return hashlib.sha256(json.dumps([[file.name, file.sha256] for file in files]).encode()).hexdigest()
