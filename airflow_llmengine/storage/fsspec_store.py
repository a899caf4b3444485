"""Other stores, through fsspec's common interface: ``gs://`` and ``az://`` in full, the rest for reading.

Files are written only to object stores, where a put is atomic by nature; and only after the store itself has shown
that it can create-if-absent. A file system behind a network protocol (``sftp://``, ``hdfs://``) would show half a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from typing_extensions import override

from airflow_llmengine.storage.backend import Backend, PendingWrite, RawFile, StoredFile, prove_commits
from airflow_llmengine.storage.errors import StorageUnsupportedError
from airflow_llmengine.storage.failures import http_status
from airflow_llmengine.storage.retrying import RetryPolicy
from airflow_llmengine.storage.urls import ParsedUrl, redact

_OBJECT_STORES = ("gs", "az")
_READ_AHEAD_BYTES = 8 * 2**20


class FsspecBackend(Backend):
    """A store that only fsspec knows. Listings are never taken from a cache."""

    def __init__(self, filesystem: Any, parsed: ParsedUrl, retry: RetryPolicy, *, writable: bool | None = None) -> None:
        super().__init__(parsed.prefix, retry)
        self._filesystem = filesystem
        self._is_object_store = parsed.protocol in _OBJECT_STORES if writable is None else writable
        self._proven: set[str] = set()

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
    def open_read(self, path: str) -> RawFile:
        if self.stat(path) is None:  # some open a folder as an empty file
            raise FileNotFoundError(path)
        file: RawFile = self._filesystem.open(self._address(path), "rb", block_size=_READ_AHEAD_BYTES)
        return file

    @override
    def creator(self, path: str, data: bytes) -> Callable[[], bool]:
        self._require_writable(path)

        def create() -> bool:
            try:
                self._filesystem.pipe_file(path, data, mode="create")
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
        self._require_writable(path)
        self._filesystem.pipe_file(path, data)

    @override
    def open_write(self, path: str) -> PendingWrite:
        self._require_writable(path)
        return _FsspecWrite(self, path, self._filesystem.open(path, "wb", autocommit=False))

    @override
    def delete(self, path: str) -> None:
        self._require_writable(path)
        try:
            self._filesystem.rm_file(path)
        except FileNotFoundError:
            return

    @override
    def delete_tree(self, path: str) -> None:
        self._require_writable(path)
        for file in list(self.walk(path)):
            self.delete(file.path)

    @override
    def files(self, path: str) -> list[StoredFile]:
        return [self._listed(details) for details in self._list(path) if details["type"] == "file"]

    @override
    def folders(self, path: str) -> list[str]:
        names = (details["name"].rstrip("/") for details in self._list(path) if details["type"] == "directory")
        return [name.rpartition("/")[2] for name in names]

    @override
    def walk(self, path: str) -> Iterator[StoredFile]:
        found = self.attempt("list", path, lambda: self._filesystem.find(self._address(path), detail=True))
        for details in found.values():
            file = self._listed(details)
            if file.path.startswith(f"{path}/"):  # a file is found below itself
                yield file

    @override
    def require_commits(self, path: str) -> None:
        self._require_writable(path)
        bucket = path.partition("/")[0]
        if bucket not in self._proven:
            prove_commits(self, path)
            self._proven.add(bucket)

    def _list(self, path: str) -> list[Mapping[str, Any]]:
        try:
            found = self._filesystem.ls(self._address(path), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        own = self._address(path).rstrip("/")
        return [details for details in found if details["name"].rstrip("/") != own]

    def _listed(self, details: Mapping[str, Any]) -> StoredFile:
        return _stored(details["name"].removeprefix(self.prefix).lstrip("/"), details)

    def _address(self, path: str) -> str:
        # Such as http:// keep the whole URL for a path.
        address: str = self._filesystem._strip_protocol(self.prefix + path)  # noqa: SLF001 - fsspec has no other way
        return address

    def _require_writable(self, path: str) -> None:
        if not self._is_object_store:
            raise StorageUnsupportedError(
                f"{redact(self.prefix + path)} can only be read: a job writes to local paths, s3://, gs:// and az://."
            )


class _FsspecWrite(PendingWrite):
    def __init__(self, backend: FsspecBackend, path: str, file: Any) -> None:
        self._backend = backend
        self._path = path
        self._file = file

    @override
    def write(self, data: bytes) -> None:
        with self._backend.translated("write", self._path):
            self._file.write(data)

    @override
    def commit(self) -> str | None:
        with self._backend.translated("write", self._path):
            self._file.close()
            self._file.commit()
            file = self._backend.stat(self._path)
        return None if file is None else file.tag

    @override
    def discard(self) -> None:
        with self._backend.translated("discard what was written of", self._path):
            self._file.discard()


def _stored(path: str, details: Mapping[str, Any]) -> StoredFile:
    tag = details.get("ETag") or details.get("etag")
    return StoredFile(path, details.get("size") or 0, str(tag).strip('"') if tag else None)
