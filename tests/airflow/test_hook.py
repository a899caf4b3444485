"""The hook over a job directory on a local file system, with no worker at all."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.exceptions import LLMEngineError, RequestRefusedError, StorageRefusedError
from airflow_llmengine.hooks.llmengine import JobProgress, LLMEngineHook
from airflow_llmengine.spec.job_state import Heartbeat, InputEnd
from airflow_llmengine.storage.job_directory import JobDirectory
from tests.airflow.operators_in_tests import EchoJob, run


def request_of(job: EchoJob) -> dict[str, Any]:
    return {
        "input_data_path": str(job.input),
        "output_data_path": str(job.output),
        "model_config": {"model": "stand-in"},
    }


def beat(replica: int, **fields: Any) -> Heartbeat:
    now = time.time()
    common = {"replica": replica, "replicas": 2, "phase": "generating", "host": "h", "pid": 1, "started": now}
    return Heartbeat(**{**common, "updated": now, **fields})


def test_a_job_from_its_launch_to_its_cancel(echo_job: EchoJob) -> None:
    hook = LLMEngineHook()
    path = str(echo_job.output)
    assert hook.get(path).state == "absent"
    launch = hook.create(request_of(echo_job), owner="me", series="one")
    assert launch.manifest is None
    assert launch.handle.path == path
    assert hook.get(path).state == "launched"
    assert hook.read_manifest(launch.handle) is None
    assert hook.read_progress(path) == JobProgress(records_total=None, records_done=0, records_failed=0)

    scratch = JobDirectory(hook.storage(), path).scratch(launch.handle)
    scratch.write_end(InputEnd(records=12, chunks=1))
    scratch.write_heartbeat(
        beat(
            0,
            records_committed=2,
            records_open=3,
            records_done=3,
            records_failed=1,
            failures={"timeout": 1},
            tokens_per_second=5.0,
        )
    )
    scratch.write_heartbeat(
        beat(
            1,
            records_open=1,
            records_done=1,
            records_failed=1,
            failures={"timeout": 1},
            tokens_per_second=9.0,
            phase="partial",
        )
    )
    assert hook.get(launch.handle).state == "running"
    progress = hook.read_progress(launch.handle.model_dump())
    assert (progress.records_total, progress.records_done, progress.records_failed) == (12, 6, 2)
    assert progress.failures == {"timeout": 2}
    assert progress.tokens_per_second == 5.0, "who has stopped has no speed"
    assert progress.updated is not None

    assert hook.cancel(path, "enough") == launch.handle
    found = hook.get(path)
    assert found.cancelled is not None
    assert found.cancelled.reason == "enough"


def test_a_finished_jobs_manifest_and_progress(echo_job: EchoJob) -> None:
    result = run(echo_job.operator())
    hook = LLMEngineHook()
    manifest = hook.read_manifest(result["job"])
    assert manifest is not None
    assert manifest.records == 12
    assert hook.read_manifest(str(echo_job.output)) == manifest
    assert hook.get(result["job"]).state == "done"
    progress = hook.read_progress(result["job"])
    assert (progress.records_total, progress.records_done, progress.completion_tokens) == (12, 12, 24)
    # Another generation's output is not this job's.
    assert hook.read_manifest({**result["job"], "generation": 2}) is None
    # Nor is one that somebody has cut.
    echo_job.output.write_text("[]")
    assert hook.read_manifest(result["job"]) is None


def test_what_can_not_be_run_is_refused(echo_job: EchoJob) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        LLMEngineHook().create({**request_of(echo_job), "max_runtime_secs": 1, "gpus": "many"}, owner="o", series="s")
    assert "max_runtime_secs" in str(refused.value)
    assert "gpus" in str(refused.value)
    assert not Path(f"{echo_job.output}.job").exists()


def test_a_job_that_is_not_there_can_not_be_cancelled(echo_job: EchoJob) -> None:
    with pytest.raises(LLMEngineError, match="no job was launched"):
        LLMEngineHook().cancel(str(echo_job.output))


def test_what_storage_says_is_passed_on(echo_job: EchoJob) -> None:
    current = Path(f"{echo_job.output}.job/current.json")
    current.parent.mkdir()
    current.write_text("{")
    for call in (LLMEngineHook().get, LLMEngineHook().cancel, LLMEngineHook().read_progress):
        with pytest.raises(StorageRefusedError, match=r"current\.json"):
            call(str(echo_job.output))


def test_nothing_is_read_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLMEngineHook, "get_connection", lambda *_: pytest.fail("the connection was read"))
    hook = LLMEngineHook("anything")
    assert hook.llmengine_conn_id == "anything"
    assert json.dumps(hook.conn_type) == '"llmengine"'
