"""What a store must be able to do. One subclass for each kind of store; ``filesystem`` is the way in for everybody."""

from __future__ import annotations

import contextlib
import io
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from airflow_llmengine.storage.errors import StorageUnsupportedError
from airflow_llmengine.storage.failures import Caller, translate
from airflow_llmengine.storage.retrying import RetryPolicy
from airflow_llmengine.storage.urls import redact

T = TypeVar("T")

_TEMPORARY_PREFIX = ".llmengine-"
_TEMPORARY_SUFFIX = ".tmp"


def temporary_name() -> str:
    """A name for a file that is not there yet for anybody else; of fixed length, whatever the target is called."""
    return f"{_TEMPORARY_PREFIX}{secrets.token_hex(12)}{_TEMPORARY_SUFFIX}"


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that was being written, perhaps by a process that died over it."""
    return name.startswith(_TEMPORARY_PREFIX) and name.endswith(_TEMPORARY_SUFFIX)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as the store lists it."""

    path: str
    """The path after the URL's prefix: ``bucket/key``, or an absolute local path."""
    size: int
    tag: str | None = None
    """The store's own tag of the content (an etag without quotes); None on a file system."""
    stamp: str | None = None
    """On a file system, what changes whenever the file is written to or replaced; None where there is a tag."""
    md5: str | None = None
    """The content's MD5 in hexadecimal, where the store tells it to who looks up this one file."""


class RawFile(Protocol):
    """A file opened for reading."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        ...

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to another place; gives it."""
        ...

    def tell(self) -> int:
        """The place of the next byte."""
        ...

    def close(self) -> None:
        """Free what was opened."""
        ...


class PendingWrite(ABC):
    """A file that is being written and that nobody sees before ``commit``."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Take more bytes; holds a bounded part of them in memory."""

    @abstractmethod
    def commit(self) -> str | None:
        """Make the whole file visible, replacing what was there; gives the store's tag of it, if it has one."""

    @abstractmethod
    def discard(self) -> None:
        """Leave no trace. Safe to call twice, and after a failed ``commit``."""


class Backend(ABC):
    """One kind of store. Methods raise what the store's library raises; ``attempt`` makes typed errors of it."""

    def __init__(self, prefix: str, retry: RetryPolicy) -> None:
        self.prefix = prefix
        self.retry = retry
        self.caller: Caller | None = None

    def attempt(self, action: str, path: str, function: Callable[[], T]) -> T:
        """Call ``function``, trying again what is transient; raises ``StorageError`` in terms of action and URL."""
        with self.translated(action, path):
            return self.retry.call(function)

    @contextlib.contextmanager
    def translated(self, action: str, path: str) -> Iterator[None]:
        """Turn whatever the store's library raises into a ``StorageError``."""
        try:
            yield
        except Exception as error:
            typed = translate(error, action, self.prefix + path, self.caller)
            if typed is error:
                raise
            raise typed from error

    @abstractmethod
    def stat(self, path: str) -> StoredFile | None:
        """The file at ``path``; None if there is none (a folder is none)."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole file."""

    def read_start(self, path: str, size: int) -> bytes:
        """At most ``size`` bytes from the file's beginning, in one step that no replacement can come between."""
        return self.read(path)[:size]

    def read_part(self, path: str, start: int, end: int, tag: str | None) -> bytes:
        """The bytes from ``start`` to before ``end``, which the file must have.

        Args:
            path: The file.
            start: First byte.
            end: First byte that is not read.
            tag: The file's tag when it was listed. A store that can hold to it refuses to read another content.
        """
        file = self.open_read(path)
        try:
            file.seek(start)
            pieces = []
            while start < end and (piece := file.read(end - start)):
                pieces.append(piece)
                start += len(piece)
            return b"".join(pieces)
        finally:
            file.close()

    @abstractmethod
    def open_read(self, path: str) -> RawFile:
        """The file, to be read piece by piece."""

    @abstractmethod
    def creator(self, path: str, data: bytes, *, durable: bool = True) -> Callable[[], bool]:
        """For ``create``: a call that creates the file if there is none: True if it did, False if there was one.

        The call may be repeated after a failure: when an earlier attempt did create the file and only the answer was
        lost, it says True. True means durable, unless that is not asked for: then a power cut may undo it.
        """

    def create(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        """Create the file if there is none, transient failures tried again; see ``creator``."""
        return self.attempt("create", path, self.creator(path, data, durable=durable))

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Put the whole file at once, whatever was there."""

    @abstractmethod
    def open_write(self, path: str) -> PendingWrite:
        """Begin a file that appears whole or not at all."""

    def move(self, path: str, target: str, tag: str | None) -> bool:
        """Move a file, at once and within the store, to another place, whatever was there; False where it can't.

        Args:
            path: The file.
            target: Where it goes.
            tag: The file's tag, where there are tags. Another content is not moved.
        """
        return False

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete the file; nothing happens if there is none."""

    @abstractmethod
    def delete_tree(self, path: str) -> None:
        """Delete everything below ``path``, temporary files included; nothing happens if there is nothing."""

    @abstractmethod
    def files(self, path: str) -> list[StoredFile]:
        """The files directly in the folder, in no order; none if there is no such folder."""

    @abstractmethod
    def folders(self, path: str) -> list[str]:
        """The names of the folders directly in the folder, in no order."""

    @abstractmethod
    def walk(self, path: str) -> Iterator[StoredFile]:
        """All files below the folder, in no order."""

    def walk_paths(self, path: str) -> Iterator[str]:
        """The paths of all files below the folder, in no order: cheaper than ``walk`` where sizes cost extra."""
        for file in self.walk(path):
            yield file.path

    @abstractmethod
    def require_commits(self, path: str) -> None:
        """Try whether files can be created beside ``path``, and only if absent; raises ``StorageError`` if not."""

    def delete_leftovers(self, path: str, older_than_seconds: float) -> int:
        """Delete what writers that died left of the file ``path``; gives how many."""
        return 0

    def abort_writes(self, path: str) -> None:
        """Give up all files below the folder that are still being written, where the store keeps track of them."""
        return


def prove_commits(backend: Backend, path: str) -> None:
    """Try on the store itself whether a create leaves what is there alone; raises ``StorageUnsupportedError`` if not.

    Needed because stores that only look like S3 may ignore the condition of a conditional put and overwrite.
    """
    folder = path.rpartition("/")[0]
    probe = f"{folder}/{temporary_name()}"
    action = "create a file beside"
    created = backend.attempt(action, path, backend.creator(probe, b"first"))
    try:
        overwritten = backend.attempt(action, path, backend.creator(probe, b"second"))
        content = backend.attempt("read a file beside", path, lambda: backend.read(probe))
    finally:
        backend.attempt("delete a file beside", path, lambda: backend.delete(probe))
    if not created or overwritten or content != b"first":
        raise StorageUnsupportedError(
            f"The store of {redact(backend.prefix + path)} overwrites files that it was told to create only if absent, "
            f"so a job's commits would not be safe there; use a store that has conditional writes."
        )


class CheckedReader(io.RawIOBase):
    """A file opened for reading, with typed errors; transient failures are tried again where they happened."""

    def __init__(self, backend: Backend, path: str, file: RawFile) -> None:
        super().__init__()
        self._backend = backend
        self._path = path
        self._file = file

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    @override
    def tell(self) -> int:
        return self._file.tell()

    @override
    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._backend.attempt("read", self._path, lambda: self._file.read(len(view)))
        view[: len(data)] = data
        return len(data)

    @override
    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class WriteStream(io.RawIOBase):
    """What a user of ``Location.writer`` writes to. Closing it does not commit: leaving the ``with`` block does."""

    def __init__(self, pending: PendingWrite) -> None:
        super().__init__()
        self._pending = pending

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, data: Any, /) -> int:
        if self.closed:
            raise ValueError("write to a closed file")
        content = bytes(data)
        self._pending.write(content)
        return len(content)
