"""The nameless file: it gives back what it took, takes no more than it may, and leaves nothing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmengine.worker.answers import local_file
from airflow_llmengine.worker.answers.local_file import BUFFER_BYTES, LocalFile

HALF = b"x" * (BUFFER_BYTES // 2)


def filled(file: LocalFile) -> LocalFile:
    """With a file on the disk."""
    for _ in range(2):
        assert file.append(HALF) is not None
    return file


@given(
    pieces=st.lists(st.binary(max_size=9), max_size=30),
    buffer=st.integers(1, 20),
    asked=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 30)), max_size=20),
)
def test_it_gives_back_what_it_took(pieces: list[bytes], buffer: int, asked: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_file, "BUFFER_BYTES", buffer)
        file = LocalFile()
        whole = b""
        for piece in pieces:
            assert file.append(piece) == len(whole)
            whole += piece
        for place, size in asked:
            assert file.read(place, size) == whole[place : place + size]
        file.close()


def test_little_needs_no_disk(open_file: Callable[..., LocalFile], tmp_path: Path) -> None:
    file = open_file(folder=tmp_path / "nowhere")
    place = file.append(b"little")
    assert place is not None
    assert file.read(place, 99) == b"little"
    assert not file.full


def test_the_file_has_no_name_and_is_private(open_file: Callable[..., LocalFile], tmp_path: Path) -> None:
    file = filled(open_file(folder=tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert file._file is not None
    found = os.fstat(file._file.fileno())
    assert (stat.S_IMODE(found.st_mode), found.st_size) == (0o600, BUFFER_BYTES)
    descriptor = file._file.fileno()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert file.append(b"more") is None


def test_it_takes_no_more_than_it_may(open_file: Callable[..., LocalFile], tmp_path: Path) -> None:
    file = filled(open_file(2 * BUFFER_BYTES, folder=tmp_path))
    assert filled(file).append(HALF) is not None
    # Found out when it is to be written: that much more than it may is in memory, and stays there.
    place = file.append(HALF)
    assert place is not None
    assert file.full
    assert file.append(b"more") is None
    assert file.read(place, len(HALF)) == HALF
    assert file.read(0, len(HALF)) == HALF


def test_it_takes_a_part_of_what_is_free(
    open_file: Callable[..., LocalFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 8 * BUFFER_BYTES

    class Disk:
        f_frsize = 1
        f_bavail = free

    monkeypatch.setattr(os, "fstatvfs", lambda _descriptor: Disk)
    file = open_file(folder=tmp_path)
    filled(filled(file))
    Disk.f_bavail = free - 2 * BUFFER_BYTES
    assert not file.full
    filled(file)
    assert file.full


def test_temporary_files_that_are_in_memory_are_few(
    open_file: Callable[..., LocalFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = f"/dev/a / ext4 rw 0 0\ntmpfs {tmp_path} tmpfs rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda _path: mounts)
    assert local_file._most_bytes_in(tmp_path / "below") == local_file.MOST_BYTES_IN_MEMORY
    assert local_file._most_bytes_in(tmp_path.parent) == local_file.MOST_BYTES
    monkeypatch.setattr(local_file, "MOST_BYTES_IN_MEMORY", BUFFER_BYTES - 1)
    assert filled(open_file(folder=tmp_path)).full


@pytest.mark.parametrize("call", ["pwrite", "pread", "fstatvfs"])
def test_a_disk_that_fails_is_told_once_and_asked_for_nothing_more(
    open_file: Callable[..., LocalFile],
    call: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = filled(open_file(folder=tmp_path))

    def fail(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    if call == "pread":
        assert file.read(0, 9) == b""
    else:
        place = filled(file)._written
        assert file.read(place, len(HALF)) == HALF
    assert file.full
    assert file.append(b"more") is None
    (told,) = caplog.messages
    assert told == f"answers can't be kept on the local disk ({tmp_path}): No space left on device"


def test_without_a_folder_for_temporary_files_what_is_in_memory_is_kept(
    open_file: Callable[..., LocalFile], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", fail)
    file = filled(open_file())
    assert file.full
    assert file.read(0, 9) == HALF[:9]
    assert caplog.messages == ["answers can't be kept on the local disk: No usable temporary directory found"]


def test_a_write_may_take_several_calls(
    open_file: Callable[..., LocalFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, place: write(descriptor, data[:1000], place))
    file = open_file(folder=tmp_path)
    data = os.urandom(BUFFER_BYTES)
    assert file.append(data) == 0
    assert file._written == len(data)
    assert file.read(0, len(data)) == data
