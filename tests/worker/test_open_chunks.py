"""What is finished of an open chunk outlives the worker, but for the last of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory, JobScratch
from airflow_llmengine.worker import open_chunks
from airflow_llmengine.worker.chunks import ChunkResults, Finished, restore_part
from airflow_llmengine.worker.open_chunks import OpenChunks
from tests.waiting import wait_until
from tests.worker.jobs import Job

SAVE_SECONDS = 0.2

WORKER = f"""
import pathlib, sys
from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
from airflow_llmengine.worker.stopping import Stop
from airflow_llmengine.worker.timing import Timing

run_attempt(
    Storage(),
    validate_request(pathlib.Path(sys.argv[1]).read_text()),
    AttemptOptions(owner="llmengine-batch", series="one"),
    Stop(),
    timing=Timing(save_seconds={SAVE_SECONDS}),
)
"""
"""A worker that saves sooner than after a minute."""


def parts(folder: Path) -> list[dict[int, Finished]]:
    return [restore_part(path.read_bytes()) for path in sorted(folder.glob("output.json.job/*/chunks/*/*.part-*"))]


def saved_in(folder: Path) -> set[int]:
    return set().union(*parts(folder))


@pytest.mark.slow
def test_a_killed_worker_loses_what_it_has_not_saved_and_no_more(tmp_path: Path) -> None:
    """One chunk of 16 records that takes far longer than ``save_seconds``."""
    job = Job(tmp_path, [f"row {index}" for index in range(16)])
    job.run("--help")
    slowly = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "1", "LLMENGINE_ECHO_CAPACITY": "1"}
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path / "request.json")],
        env=job.environment(slowly),
        start_new_session=True,
    )
    wait_until(lambda: len(saved_in(tmp_path)) >= 4)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()
    assert job.committed() == {}
    saved = saved_in(tmp_path)
    assert 4 <= len(saved) < 16
    assert len(parts(tmp_path)) == 1, "each time it saved all in the one file"
    assert job.run("--series", "one").returncode == ExitCode.DONE
    assert len(job.results()) == 16
    assert all(job.generations()[index] == 1 for index in saved)


@pytest.fixture
def scratch(tmp_path: Path) -> JobScratch:
    path = str(tmp_path / "output.json")
    return JobDirectory(Storage(), path).scratch(JobHandle(path=path, fingerprint="f", generation=1))


async def current() -> bool:
    return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for is on the disk
            await asyncio.sleep(0.01)


def test_results_are_kept_in_memory_until_their_chunk_is_committed(scratch: JobScratch) -> None:
    async def run() -> None:
        chunks = OpenChunks(scratch, current, 60)
        one, other = ChunkResults(0, 0, 2), ChunkResults(1, 2, 2, finished={2: Finished(b"{}")})
        chunks.open(one)
        chunks.open(other)
        chunks.open(one)
        chunks.finish(one, 0, Finished(b"12345"))
        chunks.finish(one, 1, Finished(b"12345"))
        assert (len(chunks), chunks.bytes) == (2, 12)
        chunks.committed(0)
        assert (chunks.results, chunks.bytes) == ([other], 2)
        chunks.committed(7)
        chunks.committed(1)
        assert (len(chunks), chunks.bytes) == (0, 0)

    asyncio.run(run())


def test_what_is_old_is_saved_once_and_what_is_complete_is_left_to_its_commit(
    scratch: JobScratch, tmp_path: Path
) -> None:
    async def run() -> None:
        chunks = OpenChunks(scratch, current, 0.03)
        begun, complete, again = ChunkResults(0, 0, 2), ChunkResults(1, 2, 1), ChunkResults(2, 3, 2, round_number=1)
        for results in (begun, complete, again):
            chunks.open(results)
            chunks.finish(results, results.first, Finished(b"{}"))
        saving = asyncio.create_task(chunks.keep_saving())
        await until(lambda: bool(parts(tmp_path)))
        await asyncio.sleep(0.1)
        chunks.end_saving()
        await saving
        assert [list(part) for part in parts(tmp_path)] == [[0]]

    asyncio.run(run())


def test_nothing_is_saved_of_a_job_that_another_launch_took_over(scratch: JobScratch, tmp_path: Path) -> None:
    async def run() -> None:
        looked = 0

        async def taken_over() -> bool:
            nonlocal looked
            looked += 1
            return False

        chunks = OpenChunks(scratch, taken_over, 0.01)
        results = ChunkResults(0, 0, 2)
        chunks.open(results)
        chunks.finish(results, 0, Finished(b"{}"))
        saving = asyncio.create_task(chunks.keep_saving())
        await until(lambda: looked > 1)
        chunks.end_saving()
        await saving
        assert parts(tmp_path) == []

    asyncio.run(run())


def test_a_store_that_fails_for_a_while_is_tried_again(
    scratch: JobScratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit_part = JobScratch.commit_part
    calls = 0

    def fails_once(self: JobScratch, chunk: int, data: bytes, *, known: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StorageError("the store is away")
        return commit_part(self, chunk, data, known=known)

    monkeypatch.setattr(JobScratch, "commit_part", fails_once)

    async def run() -> None:
        chunks = OpenChunks(scratch, current, 0.02)
        results = ChunkResults(0, 0, 3)
        chunks.open(results)
        chunks.finish(results, 0, Finished(b"{}"))
        saving = asyncio.create_task(chunks.keep_saving())
        await until(lambda: bool(parts(tmp_path)))
        chunks.end_saving()
        await saving
        assert [list(part) for part in parts(tmp_path)] == [[0]]
        assert "the store is away" in caplog.text

    asyncio.run(run())


def test_a_part_is_written_anew_until_it_is_large(
    scratch: JobScratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a chunk is open, its files are as many as its results need."""
    element = b'{"text":"%s"}' % bytes(b"x" * 50)
    monkeypatch.setattr(open_chunks, "PART_BYTES", 600)

    async def run() -> None:
        chunks = OpenChunks(scratch, current, 60)
        # What an earlier attempt has saved stays where it is.
        results = ChunkResults(0, 0, 20, finished={0: Finished(element)})
        await asyncio.to_thread(scratch.commit_part, 0, results.encode_part() or b"")
        results.saved, results.parts = {0}, 1
        chunks.open(results)
        for index in range(1, 20):
            chunks.finish(results, index, Finished(element))
            await chunks.save(results)
            saved = [one for part in parts(tmp_path) for one in part]
            assert sorted(saved) == list(range(index + 1)), "all is saved, and nothing twice"
        await chunks.save(results)
        assert [len(part) for part in parts(tmp_path)] == [1, 7, 7, 5]

    asyncio.run(run())


def test_what_is_saved_at_the_same_time_is_saved_in_turn(
    scratch: JobScratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_part = JobScratch.replace_part
    writes = 0

    def slower_at_first(self: JobScratch, chunk: int, part: int, data: bytes) -> None:
        nonlocal writes
        writes += 1
        time.sleep(0.2 if writes == 1 else 0)
        replace_part(self, chunk, part, data)

    monkeypatch.setattr(JobScratch, "replace_part", slower_at_first)

    async def run() -> None:
        chunks = OpenChunks(scratch, current, 60)
        results = ChunkResults(0, 0, 4)
        chunks.open(results)
        saves = []
        for index in range(3):
            chunks.finish(results, index, Finished(b"{}"))
            saves.append(asyncio.create_task(chunks.save(results)))
            if not index:
                await saves[0]
            await asyncio.sleep(0.01)
        await asyncio.gather(*saves)
        assert [list(part) for part in parts(tmp_path)] == [[0, 1, 2]]
        assert writes == 2

    asyncio.run(run())


def test_nothing_is_saved_of_a_chunk_that_stands_or_is_made_again(scratch: JobScratch, tmp_path: Path) -> None:
    async def run() -> None:
        chunks = OpenChunks(scratch, current, 60)
        stands, again = ChunkResults(0, 0, 1), ChunkResults(1, 1, 2, round_number=1)
        for results in (stands, again):
            chunks.open(results)
            chunks.finish(results, results.first, Finished(b"{}"))
        chunks.committed(0)
        await chunks.save_all([stands, again])
        assert parts(tmp_path) == []

    asyncio.run(run())
