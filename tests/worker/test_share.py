"""How much of a share is claimed at once, and how much of it ahead of the engine."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.job_state import InputEnd, JobHandle, PinnedInput
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory, JobScratch
from airflow_llmengine.worker.claims import Claims
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.progress import Progress
from airflow_llmengine.worker.readers import open_input
from airflow_llmengine.worker.share import HELD_PART, Share
from airflow_llmengine.worker.timing import Timing
from tests.worker.jobs import Job

RECORDS, CHUNK_RECORDS = 1600, 10


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, [f"row {index}" for index in range(RECORDS)])


def share_of(job: Job, *, replica: int = 0, replicas: int = 1, look_seconds: float = 30.0) -> tuple[Share, JobScratch]:
    storage = Storage()
    request = validate_request(json.dumps(job.request))
    reader = open_input(storage, request)
    handle = JobHandle(path=str(job.output), fingerprint="f", generation=1)
    scratch = JobDirectory(storage, str(job.output)).scratch(handle)
    timing = Timing(look_seconds=look_seconds)
    progress = Progress(replica=replica, replicas=replicas)
    share = Share(
        request=request,
        reader=reader,
        scratch=scratch,
        pinned=PinnedInput(
            input_identity=reader.identity, input_format=reader.format, chunk_records=CHUNK_RECORDS, chunk_tokens=10**6
        ),
        elements=ElementWriter(handle, 0.0),
        progress=progress,
        claims=Claims(scratch, replica=replica, attempt=progress.attempt, timing=timing),
        timing=timing,
    )
    return share, scratch


def test_several_chunks_are_claimed_at_the_same_time(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    create_claim = JobScratch.create_claim
    together = threading.Barrier(4, timeout=60)

    def waits_for_others(self: JobScratch, chunk: int, *arguments: object) -> bool:
        if chunk:
            together.wait()
        return create_claim(self, chunk, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(JobScratch, "create_claim", waits_for_others)
    share, _scratch = share_of(job)
    assert [work.results.number for work in share.next()] == [0]
    assert [work.results.number for work in share.next(4)] == [1, 2, 3, 4]
    assert [record.index for record in share.next(4)[0].todo] == list(range(50, 60))


def test_what_others_hold_is_left_out_of_several(job: Job) -> None:
    other, _scratch = share_of(job, replica=1, replicas=2)
    assert [work.results.number for work in other.next(2)] == [1, 3]
    share, _scratch = share_of(job)
    assert [work.results.number for work in share.next(5)] == [0, 2, 4]
    assert [work.results.number for work in share.next(2)] == [5, 6]


def test_each_chunk_of_a_share_comes_once_however_many_are_asked_for(job: Job) -> None:
    share, _scratch = share_of(job, replica=1, replicas=2)
    numbers = []
    for at_once in (3, 1, 16, 7, 100):
        numbers += [work.results.number for work in share.next(at_once)]
    assert numbers == list(range(1, 160, 2))
    assert not share.helping
    assert [work.results.number for work in share.next(16)] == [80], "one alone, as others may have time for the rest"
    assert share.helping


def test_a_single_replica_may_hold_any_number(job: Job) -> None:
    share, _scratch = share_of(job)
    assert share.may_hold is None


def test_beside_others_a_replica_holds_a_small_part_of_what_is_left_to_it(job: Job) -> None:
    share, scratch = share_of(job, replicas=2, look_seconds=0.0)
    assert share.may_hold == 0, "nobody knows yet how much there is"
    share.next()
    assert share.may_hold == 0
    scratch.write_end(InputEnd(records=RECORDS, chunks=RECORDS // CHUNK_RECORDS))
    share.next()
    assert share.may_hold == (RECORDS - 3 * CHUNK_RECORDS) // 2 // HELD_PART
    held = share.may_hold
    while not share.helping:
        share.next(8)
        assert share.may_hold <= held
        held = share.may_hold
    assert held == 0


def test_all_that_is_held_is_given_back(job: Job) -> None:
    share, _scratch = share_of(job)
    share.next(20)
    share.close()
    assert share.next() == []
    share.give_back()
    again, _scratch = share_of(job)
    works = again.next(20)
    assert len(works) == 20
    assert not any(work.doubtful for work in works)


def test_chunks_over_which_an_attempt_died_are_marked(job: Job) -> None:
    share, _scratch = share_of(job)
    share.next(2)
    share.close()
    share.give_back(died=True)
    again, _scratch = share_of(job)
    assert [work.doubtful for work in again.next(4)] == [True, True, False, False]
