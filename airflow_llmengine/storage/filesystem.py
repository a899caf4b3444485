"""Files by URL: the way in to every store.

``Storage`` holds the options; ``Location`` is one place in a store and everything that can be done there. All calls
block, may be made from several threads, and raise ``StorageError`` after transient failures have been tried again.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import io
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from airflow_llmengine.storage.backend import CheckedReader, WriteStream, is_temporary
from airflow_llmengine.storage.errors import StorageChangedError, StorageError
from airflow_llmengine.storage.failures import translate_opening
from airflow_llmengine.storage.retrying import RetryPolicy
from airflow_llmengine.storage.urls import LOCAL, parse_url, redact

if TYPE_CHECKING:
    from airflow_llmengine.storage.backend import Backend, PendingWrite, StoredFile
    from airflow_llmengine.storage.failures import Caller

log = logging.getLogger(__name__)

_NO_NAMES = ("", ".", "..")
"""An object store may have such parts of a key; nothing here is called so."""

READ_BUFFER_BYTES = 2**20
"""How much a file opened for reading fetches at once from a file system."""


@dataclass(frozen=True, slots=True, repr=False)
class FileEntry:
    """A file as it was when it was listed."""

    url: str
    name: str
    """The last part of the path."""
    size: int
    """Bytes."""
    identity: str | None = None
    """What changes when the content does: ``etag:...`` on object stores; None where only reading it would tell."""
    stamp: str | None = None
    """What changes whenever a local file is written to or replaced, be it with the same content; None elsewhere."""
    md5: str | None = None
    """The content's MD5 in hexadecimal, where ``info`` of an object store tells it."""

    def __repr__(self) -> str:
        return f"FileEntry({redact(self.url)!r}, size={self.size}, identity={self.identity!r})"


class Storage:
    """Every store that a job may use, with the options for each.

    ``options`` are fsspec's, by protocol: ``{"s3": {"endpoint_url": ..., "key": ...}}``. They may hold credentials and
    are shown nowhere. None is looked up here; what is not given is left to the store's own library. ``caller`` is who
    asks, for messages.
    """

    def __init__(
        self,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        retry: RetryPolicy | None = None,
        caller: Caller | None = None,
    ) -> None:
        self._caller = caller
        self._options = {protocol: dict(values) for protocol, values in (options or {}).items()}
        self._retry = retry or RetryPolicy()
        # By process: a connection does not survive a fork. A dict alone is safe for threads; at worst two of them
        # connect at once and one connection is dropped.
        self._backends: dict[tuple[int, str], Backend] = {}

    def __repr__(self) -> str:
        return f"Storage(options for: {', '.join(sorted(self._options)) or 'none'})"

    def location(self, url: str) -> Location:
        """The place that ``url`` names: a URL, or a local path (absolute, or relative to the current directory)."""
        return Location(self, parse_url(url).url)

    def backend_of(self, url: str) -> tuple[Backend, str]:
        """The store of ``url`` and the path in it. For this package only."""
        parsed = parse_url(url)
        key = (os.getpid(), parsed.store)
        backend = self._backends.get(key)
        if backend is None:
            from airflow_llmengine.storage.opening import open_backend

            try:
                opened = open_backend(parsed, self._options, self._retry)
            except Exception as error:
                raise translate_opening(error, parsed.url, self._caller) from error
            opened.caller = self._caller
            backend = self._backends.setdefault(key, opened)
        return backend, parsed.path


@dataclass(frozen=True, slots=True, repr=False)
class Location:
    """A place in a store. Two locations of one storage are equal when they are the same place."""

    storage: Storage
    url: str
    """Canonical: an absolute path for local files, ``scheme://bucket/key`` for others, without a slash at the end."""

    def __repr__(self) -> str:
        return f"Location({redact(self.url)!r})"

    def __str__(self) -> str:
        return redact(self.url)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.url.rpartition("/")[2]

    @property
    def is_local(self) -> bool:
        """Whether it lies in the local file system."""
        return parse_url(self.url).protocol == LOCAL

    @property
    def names_file(self) -> bool:
        """Whether a file can be here at all: false for a bucket as a whole and for the root of a file system."""
        return parse_url(self.url).names_file

    @property
    def url_below(self) -> str:
        """What the URLs of all that lies in this folder begin with."""
        return self.url if self.url.endswith("/") else f"{self.url}/"

    def child(self, name: str) -> Location:
        """A place below this one; ``name`` may have several parts."""
        parts = name.split("/")
        if any(part in _NO_NAMES for part in parts):
            raise ValueError(f"{name!r} is not a name below {self}.")
        return Location(self.storage, self.url_below + name)

    def sibling(self, suffix: str) -> Location:
        """The place beside this one whose name is this one's with ``suffix`` at the end."""
        return Location(self.storage, self.url + suffix)

    def exists(self) -> bool:
        """Whether a file stands here. A folder is not a file."""
        return self.info() is not None

    def info(self) -> FileEntry | None:
        """The file that stands here now; None if there is none."""
        backend, path = self._backend()
        file = backend.attempt("look up", path, lambda: backend.stat(path))
        return None if file is None else _entry(backend, file)

    def read_bytes(self) -> bytes:
        """The whole file. ``StorageNotFoundError`` if there is none."""
        backend, path = self._backend()
        return backend.attempt("read", path, lambda: backend.read(path))

    def read_start(self, size: int) -> bytes:
        """At most so many bytes from the beginning of a small file. ``StorageNotFoundError`` if there is none."""
        backend, path = self._backend()
        return backend.attempt("read", path, lambda: backend.read_start(path, size))

    def read_part(self, start: int, end: int, identity: str | None = None) -> bytes:
        """The bytes from ``start`` to before ``end``, which the file must have.

        Args:
            start: First byte.
            end: First byte that is not read.
            identity: That of the file when it was listed. A store that can hold to it, as S3 can, reads no other
                content; for the others compare ``info`` afterwards.

        Raises:
            StorageChangedError: The file has another identity by now, or does not go so far.
            StorageNotFoundError: There is none.
        """
        backend, path = self._backend()
        tag = None if identity is None else identity.removeprefix("etag:")

        def read() -> bytes:
            content = backend.read_part(path, start, end, tag)
            if len(content) != end - start:
                raise StorageChangedError(f"Cannot read {self}: it was replaced by a shorter file while it was read.")
            return content

        return backend.attempt("read", path, read)

    def open_read(self) -> BinaryIO:
        """The file to be read piece by piece, buffered, seekable. ``StorageNotFoundError`` if there is none.

        Raises ``StorageChangedError`` while reading when an object store shows that the file was replaced.
        """
        backend, path = self._backend()
        file = backend.attempt("read", path, lambda: backend.open_read(path))
        reader = io.BufferedReader(CheckedReader(backend, path, file), READ_BUFFER_BYTES)
        return cast("BinaryIO", reader)

    def create(self, data: bytes, *, durable: bool = True) -> bool:
        """Put a whole file here if there is none: True if this call did it, False if one was there already.

        Never replaces anything, whoever else tries at the same time. True means that it is durable; where that is not
        asked for, it is quicker on a file system, and a power cut may undo it.
        ``StorageUnsupportedError`` if the store can't do it.
        """
        backend, path = self._backend()
        return backend.create(path, data, durable=durable)

    def replace(self, data: bytes) -> None:
        """Put a whole small file here, whatever was there; a reader sees the old one or the new one."""
        backend, path = self._backend()
        backend.attempt("write", path, lambda: backend.replace(path, data))

    @contextlib.contextmanager
    def writer(self) -> Iterator[BinaryIO]:
        """Write a file of any size, in bounded memory.

        When the ``with`` block ends, the file stands whole in the place of what was there; when it ends with an
        exception, or the process dies, nothing of it is seen.
        """
        pending = self.open_write()
        try:
            yield cast("BinaryIO", WriteStream(pending))
            pending.commit()
        except BaseException:
            try:
                pending.discard()
            except StorageError as error:  # the first failure is the one to tell of
                log.debug("%s", error)
            raise

    def open_write(self) -> PendingWrite:
        """As ``writer``, for who ends it by hand: ``commit`` or ``discard``."""
        backend, path = self._backend()
        return backend.attempt("write", path, lambda: backend.open_write(path))

    def move_to(self, target: Location, etag: str | None) -> bool:
        """Move the file, at once and within the store, to another place, whatever was there.

        The file must be durable already, as all are that a writer has closed.

        Args:
            target: Where it goes.
            etag: The store's tag of it, where it has tags, as its writer gave it.

        Returns:
            False where the store can't do that: nothing was done then.

        Raises:
            StorageNotFoundError: There is no such file.
            StorageChangedError: It is another one than its writer left, on a store that can tell.
        """
        backend, path = self._backend()
        other, target_path = self.storage.backend_of(target.url)
        return other is backend and backend.attempt("move", path, lambda: backend.move(path, target_path, etag))

    def delete(self) -> None:
        """Delete the file; nothing happens if there is none."""
        backend, path = self._backend()
        backend.attempt("delete", path, lambda: backend.delete(path))

    def delete_tree(self) -> None:
        """Delete everything below; nothing happens if there is nothing."""
        backend, path = self._backend()
        backend.attempt("delete what lies below", path, lambda: backend.delete_tree(path))

    def list(self) -> list[FileEntry]:
        """The files directly in this folder, by name; none if there is no such folder."""
        backend, path = self._backend()
        files = backend.attempt("list", path, lambda: backend.files(path))
        entries = (_entry(backend, file) for file in files)
        return sorted((entry for entry in entries if not is_temporary(entry.name)), key=lambda entry: entry.name)

    def folders(self) -> builtins.list[str]:
        """The names of the folders directly in this folder, sorted; none if there is no such folder."""
        backend, path = self._backend()
        names = backend.attempt("list", path, lambda: backend.folders(path))
        return sorted(name for name in names if name not in _NO_NAMES)

    def walk(self) -> Iterator[FileEntry]:
        """All files below this folder, in no order; none if there is no such folder."""
        backend, path = self._backend()
        with backend.translated("list", path):
            for file in backend.walk(path):
                entry = _entry(backend, file)
                if not is_temporary(entry.name):
                    yield entry

    def walk_names(self) -> Iterator[str]:
        """The paths, relative to this folder, of all files below it, in no order: cheaper than ``walk``."""
        backend, path = self._backend()
        with backend.translated("list", path):
            for found in backend.walk_paths(path):
                name = found[len(path) :].lstrip("/")
                if not is_temporary(name.rpartition("/")[2]):
                    yield name

    def require_commits(self) -> None:
        """Make sure, by trying it in the folder of this place, that files can be created there, and only if absent.

        Raises ``StorageDeniedError`` where writing is not permitted, ``StorageUnsupportedError`` for a store that
        can't commit, ``StorageNotFoundError`` for a bucket that does not exist, ``StorageError`` if this place is a
        folder. Makes the folder on a file system; leaves no file.
        """
        backend, path = self._backend()
        backend.require_commits(path)

    def delete_leftovers(self, older_than_seconds: float) -> int:
        """Delete what writers of this file that were killed left behind; gives how many.

        Age tells them from writers that are still at work: those touch what they write all the time.
        """
        backend, path = self._backend()
        return backend.attempt("delete leftovers of", path, lambda: backend.delete_leftovers(path, older_than_seconds))

    def abort_writes(self) -> None:
        """Give up all files below this folder that are being written, or were by who died over it.

        A store may keep, and charge for, what of them it has. Whoever still writes one gets an error.
        """
        backend, path = self._backend()
        backend.attempt("give up what is being written below", path, lambda: backend.abort_writes(path))

    def _backend(self) -> tuple[Backend, str]:
        return self.storage.backend_of(self.url)


def content_identity(location: Location) -> str:
    """``sha256:...`` of the file's content, read piece by piece."""
    with location.open_read() as file:
        return f"sha256:{hash_stream(file)}"


def hash_stream(file: IO[bytes]) -> str:
    """The SHA-256 of everything that is left in ``file``, in hexadecimal."""
    digest = hashlib.sha256()
    while piece := file.read(READ_BUFFER_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def _entry(backend: Backend, file: StoredFile) -> FileEntry:
    identity = None if file.tag is None else f"etag:{file.tag}"
    name = file.path.rpartition("/")[2]
    return FileEntry(backend.prefix + file.path, name, file.size, identity, file.stamp, file.md5)
