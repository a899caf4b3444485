"""What a task and a hook tell of rows of which there was nothing to ask."""

from __future__ import annotations

import time

import pytest

from airflow_llmengine.exceptions import TooManyFailedRecordsError
from airflow_llmengine.hooks.job_summary import accepted_summary
from airflow_llmengine.hooks.llmengine import progress_of
from airflow_llmengine.spec.job_state import Heartbeat, JobHandle
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.storage.status import JobStatus
from tests.airflow.manifests import manifest_of

HANDLE = JobHandle(path="s3://bucket/out.parquet", fingerprint="ab12", generation=1)


def manifest(*, succeeded: int, skipped: int, failed: int) -> Manifest:
    failures = {"invalid_output": failed} if failed else {}
    return manifest_of(HANDLE, "parquet", succeeded=succeeded, skipped=skipped, failures=failures)


def test_shares_of_failed_records_are_of_those_that_were_tried() -> None:
    summary = accepted_summary(manifest(succeeded=1, skipped=2, failed=1), 0.5)
    assert (summary["records"], summary["succeeded"], summary["skipped"], summary["failed"]) == (4, 1, 2, 1)
    with pytest.raises(TooManyFailedRecordsError, match="1 of 2 records failed"):
        accepted_summary(manifest(succeeded=1, skipped=2, failed=1), 0.49)
    with pytest.raises(TooManyFailedRecordsError, match="all 1 records failed"):
        accepted_summary(manifest(succeeded=0, skipped=2, failed=1), None)


def test_a_hook_adds_up_what_the_replicas_tell() -> None:
    now = time.time()
    beats = [
        Heartbeat(
            replica=replica,
            replicas=2,
            phase="generating",
            host="h",
            pid=1,
            started=now,
            updated=now,
            records_skipped=2,
        )
        for replica in range(2)
    ]
    assert progress_of(JobStatus("running", HANDLE, heartbeats=beats)).records_skipped == 4
    done = JobStatus("done", HANDLE, manifest=manifest(succeeded=1, skipped=5, failed=0))
    assert progress_of(done).records_skipped == 5
