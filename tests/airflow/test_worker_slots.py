"""Turns for local workers, between real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_llmengine.hooks import worker_slots
from airflow_llmengine.hooks.worker_slots import (
    NoFreeSlotError,
    SlotDirectoryError,
    WorkerSlot,
    runtime_directory,
    take_slot,
)


def take(directory: Path, slots: int = 1, *, seconds: float = 0, said: list[str] | None = None) -> WorkerSlot:
    return take_slot(
        directory,
        slots,
        holder=f"dag/task (process {os.getpid()})",
        deadline=time.time() + seconds,
        check=lambda: None,
        log=([] if said is None else said).append,
    )


def test_one_at_a_time(tmp_path: Path) -> None:
    slot = take(tmp_path)
    with pytest.raises(NoFreeSlotError, match="All 1 worker slots"):
        take(tmp_path)
    slot.release()
    slot.release()
    take(tmp_path).release()


def test_as_many_as_the_connection_says(tmp_path: Path) -> None:
    slots = [take(tmp_path, 3) for _ in range(3)]
    with pytest.raises(NoFreeSlotError):
        take(tmp_path, 3)
    slots[1].release()
    take(tmp_path, 3).release()
    for slot in slots:
        slot.release()


def test_who_waits_says_for_whom_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_slots, "POLL_SECONDS", 0.05)
    holder = take(tmp_path)
    said: list[str] = []
    waited = []

    def release_later() -> None:
        waited.append(1)
        if len(waited) == 3:
            holder.release()

    slot = take_slot(tmp_path, 1, holder="other", deadline=time.time() + 20, check=release_later, log=said.append)
    slot.release()
    assert said == [
        f"Waiting for a worker slot: this machine runs 1 at once, and dag/task (process {os.getpid()}) has it.",
        "A worker slot is free; going on.",
    ]


def test_waiting_ends_when_it_is_told_to(tmp_path: Path) -> None:
    holder = take(tmp_path)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_slot(tmp_path, 1, holder="x", deadline=time.time() + 60, check=stop, log=lambda _message: None)
    holder.release()


def test_the_slot_is_held_as_long_as_its_worker_lives(tmp_path: Path) -> None:
    slot = take(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[slot.fileno()]) as worker:
        # The task is gone; its worker is not.
        slot.release()
        with pytest.raises(NoFreeSlotError):
            take(tmp_path)
        worker.kill()
    take(tmp_path).release()


def test_the_default_directory_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    path = runtime_directory()
    assert path == tmp_path / f"airflow-llmengine-{os.getuid()}"
    assert path.stat().st_mode & 0o777 == 0o700
    assert runtime_directory() == path
    path.chmod(0o777)
    with pytest.raises(SlotDirectoryError, match="only this user can write"):
        runtime_directory()
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(SlotDirectoryError, match="only this user can write"):
        runtime_directory()


def test_a_directory_that_can_not_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SlotDirectoryError, match="runtime_directory"):
        runtime_directory(str(tmp_path / "file" / "below"))
    assert runtime_directory(str(tmp_path / "a" / "b")).is_dir()
    (tmp_path / "worker-0.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SlotDirectoryError, match=r"worker-0\.lock can't be opened"):
        take(tmp_path)
