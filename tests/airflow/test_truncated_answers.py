"""What a task and a hook tell of structured answers that max_tokens cut."""

from __future__ import annotations

import logging
import time

import pytest

from airflow_llmengine.exceptions import TooManyFailedRecordsError
from airflow_llmengine.hooks.job_summary import accepted_summary
from airflow_llmengine.hooks.llmengine import progress_of
from airflow_llmengine.spec.job_state import Heartbeat, JobHandle
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.storage.status import JobStatus
from tests.airflow.manifests import manifest_of

HANDLE = JobHandle(path="s3://bucket/out.json", fingerprint="ab12", generation=1)


def manifest(*, succeeded: int, truncated: int, failed: int = 0) -> Manifest:
    failures = {"rejected_by_engine": failed} if failed else {}
    return manifest_of(HANDLE, "json", succeeded=succeeded, truncated=truncated, failures=failures)


def test_the_summary_has_the_count_and_the_log_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    summary = accepted_summary(manifest(succeeded=2, truncated=3, failed=1), 0.5)
    assert (summary["records"], summary["succeeded"], summary["truncated"], summary["failed"]) == (6, 2, 3, 1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("3 of 6 records asked for structured output")
    assert record.getMessage().endswith("The output stands in s3://bucket/out.json.")


def test_no_warning_where_nothing_was_cut(caplog: pytest.LogCaptureFixture) -> None:
    assert accepted_summary(manifest(succeeded=2, truncated=0), 0.0)["truncated"] == 0
    assert not caplog.messages


def test_truncated_answers_are_no_failures() -> None:
    accepted_summary(manifest(succeeded=0, truncated=3, failed=1), 0.25)
    with pytest.raises(TooManyFailedRecordsError):
        accepted_summary(manifest(succeeded=0, truncated=3, failed=1), 0.2)


def test_a_hook_adds_up_what_the_replicas_tell() -> None:
    beats = [
        Heartbeat(
            replica=replica,
            replicas=2,
            phase="generating",
            host="h",
            pid=1,
            started=time.time(),
            updated=time.time(),
            records_truncated=2 + replica,
        )
        for replica in range(2)
    ]
    assert progress_of(JobStatus("running", HANDLE, heartbeats=beats)).records_truncated == 5
    done = JobStatus("done", HANDLE, manifest=manifest(succeeded=1, truncated=4))
    assert progress_of(done).records_truncated == 4
