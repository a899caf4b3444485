"""Other stores, through fsspec's common interface: ``gs://`` and ``az://`` in full, the rest for reading.

Files are written only to object stores, where a put is atomic by nature; and only after the store itself has shown
that it can create-if-absent. A file system behind a network protocol (``sftp://``, ``hdfs://``) would show half a file.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from typing_extensions import override

from airflow_llmengine.storage.backend import Backend, PendingWrite, RawFile, StoredFile, prove_commits
from airflow_llmengine.storage.errors import StorageChangedError, StorageNoBucketError, StorageUnsupportedError
from airflow_llmengine.storage.failures import cannot, http_status, no_bucket
from airflow_llmengine.storage.retrying import RetryPolicy
from airflow_llmengine.storage.urls import ParsedUrl, redact

_OBJECT_STORES = {"gs": "bucket", "az": "container"}
"""Those that files are written to, and what each calls that in which all of its files are."""
_READ_AHEAD_BYTES = 8 * 2**20


class FsspecBackend(Backend):
    """A store that only fsspec knows. Listings are never taken from a cache."""

    def __init__(self, filesystem: Any, parsed: ParsedUrl, retry: RetryPolicy) -> None:
        super().__init__(parsed.prefix, retry)
        self._filesystem = filesystem
        self._bucket = _OBJECT_STORES.get(parsed.protocol)
        self._proven = False

    @override
    def stat(self, path: str) -> StoredFile | None:
        try:
            details = self._filesystem.info(self._address(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _stored(path, details) if details.get("type") == "file" else None

    @override
    def read(self, path: str) -> bytes:
        content: bytes = self._filesystem.cat_file(self._address(path))
        return content

    @override
    def read_start(self, path: str, size: int) -> bytes:
        address = self._address(path)
        try:
            content: bytes = self._filesystem.cat_file(address, start=0, end=size)
        except Exception as error:
            if http_status(error) != 416:
                raise
            # An empty file has no first byte.
            return b""
        return content

    @override
    def open_read(self, path: str) -> RawFile:
        found = self.stat(path)
        if found is None:  # some open a folder as an empty file
            raise FileNotFoundError(path)
        if self._bucket is not None:
            return _UnchangedObject(self, found)
        file: RawFile = self._filesystem.open(self._address(path), "rb", block_size=_READ_AHEAD_BYTES)
        return file

    @override
    def create(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        if not self._proven:
            self.require_commits(path)
        return super().create(path, data, durable=durable)

    @override
    def creator(self, path: str, data: bytes, *, durable: bool = True) -> Callable[[], bool]:
        address = self._writable_address(path)

        def create() -> bool:
            try:
                with self.naming_bucket("create", path):
                    self._filesystem.pipe_file(address, data, mode="create")
            except Exception as error:
                if not isinstance(error, FileExistsError) and http_status(error) != 412:
                    raise
                # Somebody was first: another, or an earlier attempt whose answer was lost (the library below makes
                # several). The same content standing there is taken for ours: it serves as well.
                return self.read(path) == data
            return True

        return create

    @override
    def replace(self, path: str, data: bytes) -> None:
        address = self._writable_address(path)
        with self.naming_bucket("write", path):
            self._filesystem.pipe_file(address, data)

    @override
    def open_write(self, path: str) -> PendingWrite:
        file = self._filesystem.open(self._writable_address(path), "wb", autocommit=False)
        return _FsspecWrite(self, path, file)

    @override
    def delete(self, path: str) -> None:
        try:
            self._filesystem.rm_file(self._writable_address(path))
        except FileNotFoundError:
            return

    @override
    def delete_tree(self, path: str) -> None:
        address = self._writable_address(path)
        # All of them, the placeholders for folders too.
        for name in self._filesystem.find(address):
            if name.startswith(f"{address}/"):
                with contextlib.suppress(FileNotFoundError):
                    self._filesystem.rm_file(name)

    @override
    def files(self, path: str) -> list[StoredFile]:
        return [_stored(below, details) for below, details in self._list(path) if details["type"] == "file"]

    @override
    def folders(self, path: str) -> list[str]:
        return [below.rpartition("/")[2] for below, details in self._list(path) if details["type"] == "directory"]

    @override
    def walk(self, path: str) -> Iterator[StoredFile]:
        found = self.attempt("list", path, lambda: self._filesystem.find(self._address(path), detail=True))
        # adlfs gives the name of a file, in a list, where one has the folder's name.
        for below, details in self._relocated(path, found.values() if isinstance(found, Mapping) else ()):
            yield _stored(below, details)

    @override
    def require_commits(self, path: str) -> None:
        self._writable_address(path)
        prove_commits(self, path)
        self._proven = True

    @override
    def read_part(self, path: str, start: int, end: int, tag: str | None) -> bytes:
        """The bytes from ``start`` up to, and without, ``end``; see the base class."""
        content: bytes = self._filesystem.cat_file(self._address(path), start=start, end=end)
        # They may be of another object that has replaced it. A tag never comes back with another content: what was
        # read before is of the object that has it now.
        if tag is not None:
            found = self.stat(path)
            if found is None or found.tag != tag:
                raise StorageChangedError(
                    f"{cannot(self.caller)} read {redact(self.prefix + path)}: it was replaced while it was being read."
                )
        return content

    @contextlib.contextmanager
    def naming_bucket(self, action: str, path: str) -> Iterator[None]:
        """What is not there when a file is written is what it is written to, and not the file."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, FileNotFoundError) and http_status(error) != 404:
                raise
            raise StorageNoBucketError(
                f"{cannot(self.caller)} {action} {redact(self.prefix + path)}: {no_bucket(self._bucket or 'place')}."
            ) from error

    def _list(self, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        try:
            found = self._filesystem.ls(self._address(path), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield from self._relocated(path, found)

    def _relocated(self, path: str, found: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """What the file system listed below ``path``, each with its path as it is called here."""
        start = self._address(path).rstrip("/") + "/"
        for details in found:
            if details["type"] == "file" and details["name"].endswith("/"):
                continue  # a placeholder that some tools make for a folder
            name = details["name"].rstrip("/")
            if name.startswith(start):  # else it is the folder's own entry, or a file that was listed below itself
                yield f"{path}/{name[len(start) :]}", details

    def _address(self, path: str) -> str:
        # Each file system has its own idea of what of a URL it takes for the path.
        address: str = self._filesystem._strip_protocol(self.prefix + path)  # noqa: SLF001 - fsspec's only way
        return address

    def _writable_address(self, path: str) -> str:
        if self._bucket is None:
            raise StorageUnsupportedError(
                f"{redact(self.prefix + path)} can only be read: a job writes to local paths, s3://, gs:// and az://."
            )
        return self._address(path)


class _UnchangedObject:
    """An object that is read range by range, as long as it is the one that was opened."""

    def __init__(self, backend: FsspecBackend, opened: StoredFile) -> None:
        self._backend = backend
        self._opened = opened
        self._position = 0
        self._start = 0
        self._range = b""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        if self._position >= self._opened.size:
            return b""
        if not self._start <= self._position < self._start + len(self._range):
            self._fetch()
        first = self._position - self._start
        data = self._range[first : first + size]
        self._position += len(data)
        return data

    def _fetch(self) -> None:
        end = min(self._position + _READ_AHEAD_BYTES, self._opened.size)
        self._range = self._backend.read_part(self._opened.path, self._position, end, self._opened.tag)
        self._start = self._position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to another place; gives it."""
        self._position = max(0, offset + (0, self._position, self._opened.size)[whence])
        return self._position

    def tell(self) -> int:
        """The place of the next byte."""
        return self._position

    def close(self) -> None:
        """Nothing is open but for the moment of a request."""
        self._range = b""


class _FsspecWrite(PendingWrite):
    def __init__(self, backend: FsspecBackend, path: str, file: Any) -> None:
        self._backend = backend
        self._path = path
        self._file = file

    @override
    def write(self, data: bytes) -> None:
        with self._backend.translated("write", self._path), self._backend.naming_bucket("write", self._path):
            self._file.write(data)

    @override
    def commit(self) -> str | None:
        with self._backend.translated("write", self._path), self._backend.naming_bucket("write", self._path):
            self._file.close()
            self._file.commit()
        file = self._backend.attempt("look up", self._path, lambda: self._backend.stat(self._path))
        return None if file is None else file.tag

    @override
    def discard(self) -> None:
        with self._backend.translated("discard what was written of", self._path):
            self._file.discard()
            self._file.closed = True  # else it begins a new upload when it is collected as garbage


def _stored(path: str, details: Mapping[str, Any]) -> StoredFile:
    # Google's etag is another one each time that the same content is put there. What is composed has no MD5.
    md5 = details.get("md5Hash")
    tag = md5 or details.get("ETag") or details.get("etag")
    return StoredFile(
        path,
        details.get("size") or 0,
        str(tag).strip('"') if tag else None,
        md5=base64.b64decode(md5).hex() if md5 else None,
    )
