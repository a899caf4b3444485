"""``memory://``: files of this process only, for trying things out and for tests."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from airflow_llmengine.storage.backend import Backend, PendingWrite, RawFile, StoredFile
from airflow_llmengine.storage.retrying import RetryPolicy

_LOCK = threading.RLock()
"""One for all: fsspec's memory file system is one for all, and does nothing against races."""


class MemoryBackend(Backend):
    """fsspec's memory file system with a lock around each step."""

    def __init__(self, filesystem: Any, retry: RetryPolicy) -> None:
        super().__init__("memory://", retry)
        self._filesystem = filesystem

    @override
    def stat(self, path: str) -> StoredFile | None:
        with _LOCK:
            if not self._filesystem.isfile(path):
                return None
            return StoredFile(path, len(self._filesystem.cat_file(path)))

    @override
    def read(self, path: str) -> bytes:
        with _LOCK:
            content: bytes = self._filesystem.cat_file(path)
            return content

    @override
    def open_read(self, path: str) -> RawFile:
        # A copy: fsspec hands out the stored object itself, with one position for all of its readers.
        return io.BytesIO(self.read(path))

    @override
    def creator(self, path: str, data: bytes, *, durable: bool = True) -> Callable[[], bool]:
        def create() -> bool:
            with _LOCK:
                if self._filesystem.isfile(path):
                    return False
                self._filesystem.pipe_file(path, data)
                return True

        return create

    @override
    def replace(self, path: str, data: bytes) -> None:
        with _LOCK:
            self._filesystem.pipe_file(path, data)

    @override
    def open_write(self, path: str) -> PendingWrite:
        return _MemoryWrite(self, path)

    @override
    def delete(self, path: str) -> None:
        with _LOCK:
            if self._filesystem.isfile(path):
                self._filesystem.rm_file(path)

    @override
    def delete_tree(self, path: str) -> None:
        with _LOCK:
            for file in self._find(path):
                self._filesystem.rm_file(file.path)

    @override
    def files(self, path: str) -> list[StoredFile]:
        return [file for file in self._find(path) if "/" not in _below(file.path, path)]

    @override
    def folders(self, path: str) -> list[str]:
        below = (_below(file.path, path).partition("/") for file in self._find(path))
        return sorted({name for name, slash, _ in below if slash})

    @override
    def walk(self, path: str) -> Iterator[StoredFile]:
        yield from self._find(path)

    @override
    def require_commits(self, path: str) -> None:
        return  # the lock sees to it

    def _find(self, path: str) -> list[StoredFile]:
        with _LOCK:
            found = self._filesystem.find(f"/{path}", detail=True)
        files = (StoredFile(name.lstrip("/"), details["size"]) for name, details in found.items())
        return [file for file in files if file.path.startswith(f"{path}/" if path else "")]


def _below(path: str, folder: str) -> str:
    return path[len(folder) :].lstrip("/")


class _MemoryWrite(PendingWrite):
    def __init__(self, backend: MemoryBackend, path: str) -> None:
        self._backend = backend
        self._path = path
        self._pieces: list[bytes] = []

    @override
    def write(self, data: bytes) -> None:
        self._pieces.append(data)

    @override
    def commit(self) -> str | None:
        data = b"".join(self._pieces)
        self._backend.attempt("write", self._path, lambda: self._backend.replace(self._path, data))
        return None

    @override
    def discard(self) -> None:
        self._pieces.clear()
