"""Storage in which calls go wrong as an attempt's plan says, and which writes down what was done."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from airflow_llmengine.storage.backend import Backend, PendingWrite, RawFile, StoredFile, temporary_name
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.retrying import RetryPolicy
from tests.faults.plan import FileKind, Operation, StorageFault
from tests.faults.world import Effect, Killed, Process

T = TypeVar("T")

QUICK = RetryPolicy(attempts=4, total_seconds=10, first_wait_seconds=0.002, longest_wait_seconds=0.02)
"""As in production, in a hundredth of the time."""

DELAY_SECONDS = 0.2

_KINDS_BY_NAME: dict[str, FileKind] = {
    "current.json": "current",
    "cancel.json": "cancel",
    "job.json": "job",
    "input.json": "input",
    "model.json": "model",
    "end.json": "end",
}


def kind_of(path: str) -> FileKind:
    """What a path is in the layout of a job."""
    name = path.rpartition("/")[2]
    if ".job/" not in path:
        return "manifest" if name.endswith(".manifest.json") else "source" if name.startswith("input") else "output"
    if name in _KINDS_BY_NAME:
        return _KINDS_BY_NAME[name]
    if "/claims/" in path:
        return "claim"
    if "/replicas/" in path:
        return "heartbeat"
    if "/chunks/" in path:
        return "part" if ".part-" in name else "mark" if ".transient-" in name else "chunk"
    return "folder"


class StoreAnswerError(Exception):
    """What an object store's library raises for an answer with an error status."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}


class Faults:
    """What is left of an attempt's storage faults.

    Args:
        faults: The plan's.
        process: Whose calls they meet.
    """

    def __init__(self, faults: Sequence[StorageFault], process: Process) -> None:
        self._process = process
        self._left = [[fault, fault.nth, fault.times] for fault in faults]

    def next(self, operation: Operation, kind: FileKind) -> StorageFault | None:
        """The fault that this call meets."""
        for entry in self._left:
            fault, _wait, _times = entry
            assert isinstance(fault, StorageFault)
            if fault.operation not in (operation, "any") or fault.file not in (kind, "any") or not entry[2]:
                continue
            if entry[1]:
                entry[1] -= 1  # type: ignore[operator]
                continue
            entry[2] -= 1  # type: ignore[operator]
            self._process.world.fire(fault.kind)
            self._process.world.fired_at.add((operation, kind))
            return fault
        return None


class FaultyStorage(Storage):
    """One attempt's way to storage.

    Args:
        real: The storage below; it may be shared.
        process: The attempt.
        faults: What goes wrong.
        lag: Seconds after which listings show a new file.
    """

    def __init__(self, real: Storage, process: Process, faults: Sequence[StorageFault], lag: float) -> None:
        super().__init__()
        self._real = real
        self._process = process
        self._faults = Faults(faults, process)
        self._lag = lag

    @override
    def backend_of(self, url: str) -> tuple[Backend, str]:
        backend, path = self._real.backend_of(url)
        return FaultyBackend(backend, self._process, self._faults, self._lag), path


class FaultyBackend(Backend):
    """A backend in front of a real one. It keeps a backend's promises: what is lost is only what a store may lose."""

    def __init__(self, real: Backend, process: Process, faults: Faults, lag: float) -> None:
        super().__init__(real.prefix, real.retry)
        self._real = real
        self._process = process
        self._faults = faults
        self._lag = lag

    def call(self, operation: Operation, path: str, function: Callable[[], T], *, data: bytes | None = None) -> T:
        """Make one call, and let happen to it what is planned.

        Args:
            operation: For the plan.
            path: Likewise.
            function: The call.
            data: What it writes, for a write that may be torn.
        """
        number = self._process.before_call()
        fault = self._faults.next(operation, kind_of(path))
        if fault is not None and fault.kind != "answer lost":
            self._fail(fault, path, data)
        result = function()
        self._process.after_call(number)
        if fault is not None and fault.kind == "answer lost":
            raise TimeoutError("the answer was lost")
        return result

    def _fail(self, fault: StorageFault, path: str, data: bytes | None) -> None:
        match fault.kind:
            case "delay":
                time.sleep(DELAY_SECONDS)
                self._process.require_life()
            case "503":
                raise StoreAnswerError(503, "SlowDown")
            case "timeout":
                raise TimeoutError("timed out")
            case "io error":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            case "denied":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            case "disk full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "torn write":
                self.leave_temporary(path, (data or b"")[: len(data or b"") // 2])
                self._process.kill()
                raise Killed

    def leave_temporary(self, path: str, data: bytes) -> None:
        """Put down what a process that is killed over a write leaves on a file system."""
        if not self.prefix:
            folder = Path(path).parent
            folder.mkdir(parents=True, exist_ok=True)
            (folder / temporary_name()).write_bytes(data)

    def note(self, operation: str, path: str, began: float, data: bytes = b"") -> None:
        """Write down what was done."""
        self._process.world.effect(Effect(began, time.monotonic(), self._process.name, operation, path, data))

    @override
    def stat(self, path: str) -> StoredFile | None:
        return self.call("stat", path, lambda: self._real.stat(path))

    @override
    def read(self, path: str) -> bytes:
        return self.call("read", path, lambda: self._real.read(path))

    @override
    def open_read(self, path: str) -> RawFile:
        with contextlib.ExitStack() as lost:

            def effect() -> RawFile:
                file = self._real.open_read(path)
                # Closed by the kernel, if this process dies now.
                lost.callback(file.close)
                return file

            file = self.call("read", path, effect)
            lost.pop_all()
        return _FaultyFile(self, path, file)

    @override
    def creator(self, path: str, data: bytes, *, durable: bool = True) -> Callable[[], bool]:
        create = self._real.creator(path, data, durable=durable)
        created = False

        def effect() -> bool:
            nonlocal created
            began = time.monotonic()
            if create():
                created = True
                self.note("create", path, began, data)
            # As a backend promises: a repetition knows that an earlier call did it and only its answer was lost.
            return created

        return lambda: self.call("create", path, effect, data=data)

    @override
    def replace(self, path: str, data: bytes) -> None:
        def effect() -> None:
            began = time.monotonic()
            self._real.replace(path, data)
            self.note("replace", path, began, data)

        self.call("replace", path, effect, data=data)

    @override
    def open_write(self, path: str) -> PendingWrite:
        with contextlib.ExitStack() as lost:

            def effect() -> PendingWrite:
                pending = self._real.open_write(path)
                lost.callback(self.leave_temporary, path, b"")
                lost.callback(pending.discard)
                return pending

            pending = self.call("write", path, effect)
            lost.pop_all()
        return _FaultyWrite(self, path, pending)

    @override
    def delete(self, path: str) -> None:
        def effect() -> None:
            began = time.monotonic()
            self._real.delete(path)
            self.note("delete", path, began)

        self.call("delete", path, effect)

    @override
    def delete_tree(self, path: str) -> None:
        def effect() -> None:
            began = time.monotonic()
            self._real.delete_tree(path)
            self.note("delete_tree", path, began)

        self.call("delete", path, effect)

    @override
    def files(self, path: str) -> list[StoredFile]:
        return self.call("list", path, lambda: [file for file in self._real.files(path) if self._is_listed(file.path)])

    @override
    def folders(self, path: str) -> list[str]:
        return self.call("list", path, lambda: self._real.folders(path))

    @override
    def walk(self, path: str) -> Iterator[StoredFile]:
        # A walk is not tried again by its callers: each backend does so itself, page by page.
        yield from self.attempt(
            "list",
            path,
            lambda: self.call(
                "list", path, lambda: [file for file in self._real.walk(path) if self._is_listed(file.path)]
            ),
        )

    @override
    def walk_paths(self, path: str) -> Iterator[str]:
        yield from self.attempt(
            "list",
            path,
            lambda: self.call(
                "list", path, lambda: [found for found in self._real.walk_paths(path) if self._is_listed(found)]
            ),
        )

    @override
    def require_commits(self, path: str) -> None:
        self.attempt(
            "create a file beside", path, lambda: self.call("probe", path, lambda: self._real.require_commits(path))
        )

    @override
    def move(self, path: str, target: str, tag: str | None) -> bool:
        return self.call("write", target, lambda: self._real.move(path, target, tag))

    @override
    def abort_writes(self, path: str) -> None:
        self.call("delete", path, lambda: self._real.abort_writes(path))

    @override
    def delete_leftovers(self, path: str, older_than_seconds: float) -> int:
        return self.call("delete", path, lambda: self._real.delete_leftovers(path, older_than_seconds))

    def _is_listed(self, path: str) -> bool:
        if not self._lag:
            return True
        recently = time.monotonic() - self._lag
        return not any(
            effect.path == path and effect.operation == "create" and effect.ended > recently
            for effect in list(self._process.world.effects)
        )


class _FaultyFile:
    """A file being read. An answer that is lost is lost before the place in the file moves."""

    def __init__(self, backend: FaultyBackend, path: str, file: RawFile) -> None:
        self._backend = backend
        self._path = path
        self._file = file

    def read(self, size: int, /) -> bytes:
        place = self._file.tell()
        try:
            return self._backend.call("read", self._path, lambda: self._file.read(size))
        except BaseException:
            self._file.seek(place)
            raise

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class _FaultyWrite(PendingWrite):
    def __init__(self, backend: FaultyBackend, path: str, pending: PendingWrite) -> None:
        self._backend = backend
        self._path = path
        self._pending = pending
        self._committed: tuple[str | None] | None = None

    @override
    def write(self, data: bytes) -> None:
        self._backend.attempt(
            "write", self._path, lambda: self._backend.call("write", self._path, lambda: None, data=data)
        )
        self._pending.write(data)

    @override
    def commit(self) -> str | None:
        def effect() -> str | None:
            if self._committed is None:
                began = time.monotonic()
                self._committed = (self._pending.commit(),)
                self._backend.note("write", self._path, began)
            return self._committed[0]

        return self._backend.attempt("write", self._path, lambda: self._backend.call("write", self._path, effect))

    @override
    def discard(self) -> None:
        try:
            self._backend.attempt("discard", self._path, lambda: self._backend.call("write", self._path, lambda: None))
        except Killed:
            self._pending.discard()
            self._backend.leave_temporary(self._path, b"half of")
            raise
        self._pending.discard()
