"""The local file system, and whatever is mounted into it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from typing_extensions import override

from airflow_llmengine.storage.backend import Backend, PendingWrite, RawFile, StoredFile, is_temporary, temporary_name
from airflow_llmengine.storage.errors import StorageDocumentError, StorageError, StorageUnsupportedError
from airflow_llmengine.storage.retrying import RetryPolicy

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_TRIES = 5

T = TypeVar("T")


class LocalBackend(Backend):
    """Plain files. A commit is a hard link: it never overwrites, and what it shows is whole.

    Rename would overwrite, and an exclusive open would show half a file.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        super().__init__("", retry)

    @override
    def stat(self, path: str) -> StoredFile | None:
        try:
            status = os.stat(path)  # noqa: PTH116 - as os.scandir below: called once for each of thousands of files
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _stored(path, status) if stat.S_ISREG(status.st_mode) else None

    @override
    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    @override
    def read_start(self, path: str, size: int) -> bytes:
        # Somebody else may have put a pipe there, which would be waited for, or a device, which has no end.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StorageDocumentError(f"{path} is not a file: somebody else put it there; delete it.")
            return file.read(size)

    @override
    def open_read(self, path: str) -> RawFile:
        return Path(path).open("rb", buffering=0)

    @override
    def creator(self, path: str, data: bytes, *, durable: bool = True) -> Callable[[], bool]:
        return lambda: not os.path.lexists(path) and _in_folder_that_may_go(lambda: _link(path, data, durable=durable))

    @override
    def replace(self, path: str, data: bytes) -> None:
        _in_folder_that_may_go(lambda: _rename(path, data))

    @override
    def open_write(self, path: str) -> PendingWrite:
        return _LocalWrite(path, self)

    @override
    def move(self, path: str, target: str, tag: str | None) -> bool:
        if not os.path.lexists(path):
            raise FileNotFoundError(path)
        try:
            _in_folder_that_may_go(lambda: _move(path, target))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
        return True

    @override
    def delete(self, path: str) -> None:
        try:
            os.unlink(path)  # noqa: PTH108 - Path.unlink forgives only one of the two
        except (FileNotFoundError, NotADirectoryError):
            return
        _sync_folder(Path(path).parent)

    @override
    def delete_tree(self, path: str) -> None:
        _delete_tree(path)

    @override
    def files(self, path: str) -> list[StoredFile]:
        found = []
        for entry in _scan(path):
            if not is_temporary(entry.name) and _is_file(entry):
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    found.append(_stored(entry.path, entry.stat()))
        return found

    @override
    def folders(self, path: str) -> list[str]:
        return [entry.name for entry in _scan(path) if _is_folder(entry)]

    @override
    def walk(self, path: str) -> Iterator[StoredFile]:
        for entry in self._walk_entries(path):
            with contextlib.suppress(FileNotFoundError):
                yield _stored(entry.path, entry.stat())

    @override
    def walk_paths(self, path: str) -> Iterator[str]:
        for entry in self._walk_entries(path):
            yield entry.path

    @override
    def require_commits(self, path: str) -> None:
        if Path(path).is_dir():
            raise StorageError(f"{path} is a folder, not a file; give the name of a file.")
        probe = Path(path).with_name(temporary_name())
        self.attempt("create a file beside", path, self.creator(str(probe), b""))
        self.attempt("delete a file beside", path, lambda: probe.unlink(missing_ok=True))

    @override
    def delete_leftovers(self, path: str, older_than_seconds: float) -> int:
        deleted = 0
        for entry in _scan(str(Path(path).parent)):
            if is_temporary(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime <= time.time() - older_than_seconds:
                        os.unlink(entry.path)  # noqa: PTH108
                        deleted += 1
        return deleted

    def _walk_entries(self, path: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[os.DirEntry[str]]:
        try:
            status = os.stat(path)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return
        identity = (status.st_dev, status.st_ino)
        if identity in above:  # a symbolic link that leads back up
            return
        with self.translated("list", path):
            entries = _scan(path)
        for entry in entries:
            if _is_folder(entry):
                yield from self._walk_entries(entry.path, (*above, identity))
            elif not is_temporary(entry.name) and _is_file(entry):
                yield entry


class _LocalWrite(PendingWrite):
    def __init__(self, path: str, backend: LocalBackend) -> None:
        self._path = path
        self._backend = backend
        with backend.translated("write", path):
            self._temporary, self._file = _in_folder_that_may_go(lambda: _open_temporary(path))

    @override
    def write(self, data: bytes) -> None:
        with self._backend.translated("write", self._path):
            self._file.write(data)

    @override
    def commit(self) -> str | None:
        with self._backend.translated("write", self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self._path)
            _sync_folder(self._temporary.parent)
        return None

    @override
    def discard(self) -> None:
        with self._backend.translated("discard what was written of", self._path):
            with contextlib.suppress(OSError):  # closing flushes, and the disk may be full; it goes away anyhow
                self._file.close()
            self._temporary.unlink(missing_ok=True)


def _stored(path: str, status: os.stat_result) -> StoredFile:
    return StoredFile(path, status.st_size, stamp=f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}")


def _in_folder_that_may_go(function: Callable[[], T]) -> T:
    """Call again what failed because somebody deleted the folder just then; it is made anew."""
    for remaining in reversed(range(_TRIES)):
        try:
            return function()
        except FileNotFoundError:
            if not remaining:
                raise
    raise AssertionError("the last try returns or raises")


def _link(path: str, data: bytes, *, durable: bool) -> bool:
    temporary = _write_temporary(path, data, durable=durable)
    try:
        os.link(temporary, path)
    except FileExistsError:
        # On a network file system the link may have been made and only the answer lost: then there are two names.
        if temporary.stat().st_nlink < 2:
            return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StorageUnsupportedError(
            f"The file system of {path} has no hard links, so a job's commits would not be safe there; "
            f"use a folder on another file system."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        _sync_folder(temporary.parent)
    return True


def _rename(path: str, data: bytes) -> None:
    temporary = _write_temporary(path, data)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(temporary.parent)


def _move(path: str, target: str) -> None:
    folder = Path(target).parent
    _make_folders(folder)
    os.replace(path, target)  # noqa: PTH105
    _sync_folder(folder)


def _write_temporary(path: str, data: bytes, *, durable: bool = True) -> Path:
    """A new file beside ``path`` with ``data`` in it, safely on the disk if it is to be durable."""
    temporary, file = _open_temporary(path)
    try:
        with file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _open_temporary(path: str) -> tuple[Path, BinaryIO]:
    folder = Path(path).parent
    temporary = folder / temporary_name()
    _make_folders(folder)
    # 0o666 less the umask: the result has the mode of any file that its user writes.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return temporary, os.fdopen(descriptor, "wb")


def _make_folders(folder: Path) -> None:
    """Make the folder and what is missing above it, and see to it that the names survive a power cut."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder.parent == folder:
            break
        folder = folder.parent
    for new in reversed(missing):
        with contextlib.suppress(FileNotFoundError):
            new.mkdir(exist_ok=True)
            _sync_folder(new.parent)


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # deleted in the meantime, and the file with it
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(descriptor)


def _scan(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a symbolic link that leads round in a circle
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _delete_tree(path: str) -> None:
    """Like ``shutil.rmtree``, at peace with others who delete or still write there at the same time.

    A link is deleted, and what it leads to left alone, also where a folder becomes a link in the meantime.
    """
    for remaining in reversed(range(_TRIES)):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            # Where the last part of the path is a link, it is one of the two.
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            if os.path.islink(path):  # noqa: PTH114
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108
            return
        try:
            _delete_content(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.rmdir(path)  # noqa: PTH106
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not remaining:
                raise
        else:
            return


def _delete_content(folder: int) -> None:
    """Delete what is in an open folder, as far as nobody else does."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        with contextlib.suppress(FileNotFoundError):
            if not is_folder:
                os.unlink(name, dir_fd=folder)
                continue
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                _delete_content(descriptor)
            finally:
                os.close(descriptor)
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as error:
                # Written to in the meantime: the next try finds it.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
