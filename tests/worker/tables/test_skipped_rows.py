"""Rows of which there is nothing to ask: no failures, no successes, and counted wherever records are."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow.parquet
import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.status import job_status
from airflow_llmengine.worker.chunks import ChunkResults, Finished, decode_results, restore_chunk, restore_part
from airflow_llmengine.worker.elements import SKIPPED
from airflow_llmengine.worker.engines.base import Answer, EngineDiedError
from airflow_llmengine.worker.engines.echo import REJECT_MARKER, EchoEngine
from airflow_llmengine.worker.progress import Progress
from airflow_llmengine.worker.records import Record
from tests.worker.tables.table_jobs import PROMPT, TableJob, write_parquet

SKIPS = {**PROMPT, "on_null": "skip"}


def job_of(folder: Path, *texts: str | None) -> TableJob:
    source = write_parquet(folder / "in.parquet", {"text": pyarrow.array(texts, pyarrow.string())})
    return TableJob(source, folder / "out.parquet", SKIPS)


def counts(manifest: Manifest) -> tuple[int, int, int, int]:
    return manifest.records, manifest.succeeded, manifest.skipped, manifest.failed


def test_they_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = job_of(tmp_path, "a", None, f"{REJECT_MARKER} b", None)
    with caplog.at_level(logging.INFO):
        outcome = job.run(max_error_rate=0.5)
    assert outcome.message.startswith("4 records, 1 of them failed and 2 skipped, are in ")
    assert outcome.manifest is not None
    assert counts(outcome.manifest) == (4, 1, 2, 1)
    assert "failed: 1 rejected_by_engine, skipped: 2; tokens" in caplog.text
    status = job_status(Storage(), job.target)
    assert status.lines()[0] == "done       4 records, failed: 1 rejected_by_engine, skipped: 2"


def test_shares_of_failed_records_are_of_those_that_were_tried(tmp_path: Path) -> None:
    job = job_of(tmp_path, "a", None, f"{REJECT_MARKER} b", None)
    assert job.run(max_error_rate=0.49).exit_code is ExitCode.TOO_MANY_FAILED_RECORDS
    job.done(max_error_rate=0.5)
    # Of an output that stands, too.
    assert job.run(max_error_rate=0.49).exit_code is ExitCode.TOO_MANY_FAILED_RECORDS


def test_a_job_whose_tried_rows_all_failed_has_failed(tmp_path: Path) -> None:
    outcome = job_of(tmp_path, None, f"{REJECT_MARKER} b").run()
    assert outcome.exit_code is ExitCode.TOO_MANY_FAILED_RECORDS
    assert outcome.message.startswith("all 1 records failed (1 rejected_by_engine)")


def test_the_count_outlives_the_attempt_that_made_it(tmp_path: Path) -> None:
    job = job_of(tmp_path, None, "a", "b", "c", None)

    class Dies(EchoEngine):
        async def complete(self, record: Record) -> Answer:
            if record.index >= 2:
                raise EngineDiedError("it was to die")
            return await super().complete(record)

    assert job.run(Dies).exit_code is not ExitCode.DONE
    assert counts(job.done()) == (5, 3, 2, 0)


def test_replicas_and_collect_count_together(tmp_path: Path) -> None:
    job = job_of(tmp_path, *["a", None] * 20)
    for replica in range(2):
        assert job.run(replica=replica, replicas=2, chunk_records=4).exit_code is ExitCode.DONE
    status = job_status(Storage(), job.target)
    assert sum(beat.records_skipped for beat in status.heartbeats) == 20
    told = [beat.records_skipped for beat in status.heartbeats if beat.records_skipped]
    assert all(any(f" 0 failed, {count} skipped, " in line for line in status.lines()) for count in told)
    outcome = job.collect()
    assert outcome.manifest is not None
    assert counts(outcome.manifest) == (40, 20, 20, 0)


def test_a_chunk_and_a_part_name_them() -> None:
    results = ChunkResults(number=0, first=5, size=2)
    results.finished = {5: Finished(SKIPPED, skipped=True), 6: Finished(b'{"choices":[]}')}
    assert restore_chunk(results.encode()) == results.finished
    assert decode_results(results.encode())[0].skipped == [5]
    part = results.encode_part()
    assert part is not None
    assert restore_part(part) == results.finished


def test_the_progress_line_tells_of_them() -> None:
    progress = Progress(replica=0, replicas=1, total=3)
    progress.count(Finished(element=b"{}"))
    assert "skipped" not in progress.line() + progress.summary()
    progress.count(Finished(element=SKIPPED, skipped=True))
    assert progress.line().endswith("0 failed, 1 skipped")
    assert ", failed: none, skipped: 1; " in progress.summary()
