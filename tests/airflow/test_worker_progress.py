"""The line on a job's progress in the log of a task whose worker runs elsewhere."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
from airflow_llmengine.hooks.worker_progress import progress_line
from airflow_llmengine.spec.job_state import Heartbeat, InputEnd, JobHandle
from airflow_llmengine.storage.status import JobStatus

HANDLE = JobHandle(path="s3://bucket/out.json", fingerprint="ab12", generation=1)


def attempt(replica: int | None = 0, replicas: int = 1) -> WorkerAttempt:
    return WorkerAttempt(
        handle=HANDLE,
        owner="dag/task",
        series="one",
        deadline=9e9,
        max_error_rate=None,
        replica=replica,
        replicas=replicas,
    )


def beat(replica: int = 0, *, phase: Any = "generating", age: float = 0.0, **fields: Any) -> Heartbeat:
    now = time.time() - age
    return Heartbeat(replica=replica, replicas=2, phase=phase, host="h", pid=1, started=now, updated=now, **fields)


def line(*beats: Heartbeat, records: int | None = 1000, **who: Any) -> str:
    end = None if records is None else InputEnd(records=records, chunks=10)
    return progress_line(JobStatus("running", HANDLE, end=end, heartbeats=list(beats)), attempt(**who))


def test_a_worker_that_has_not_shown_up() -> None:
    assert line(records=None) == "0 of ? records done; the worker has not shown up yet"


def test_all_replicas_count_and_one_is_named() -> None:
    said = line(
        beat(0, records_committed=250, records_open=50, records_per_second=1.5, tokens_per_second=30.4),
        beat(1, phase="loading", records_committed=100, records_failed=3, records_per_second=0.5),
        replica=1,
        replicas=2,
    )
    assert said == (
        "400 of 1000 records done, 3 failed, 2.0 records/s, 30 tokens/s, about 0:05:00 left; replica 1 of 2 is loading"
    )


def test_truncated_answers_are_told_apart_from_failures() -> None:
    said = line(
        beat(0, records_committed=9, records_failed=1, records_truncated=2),
        beat(1, records_truncated=3),
        replica=1,
        replicas=2,
    )
    assert said == "9 of 1000 records done, 1 failed, 5 truncated by max_tokens; replica 1 of 2 is generating"


def test_how_long_it_takes_is_not_guessed_where_nobody_can_know() -> None:
    assert "left" not in line(beat(records_per_second=2.0), records=None)
    assert "left" not in line(beat(records_per_second=0.0))
    # It was fast, and is dead.
    assert "left" not in line(beat(records_per_second=2.0, age=3600))


def test_more_done_than_there_is_takes_no_negative_time() -> None:
    assert "about 0:00:00 left" in line(beat(records_committed=1001, records_per_second=2.0))


def test_what_puts_the_shares_together_is_no_replica() -> None:
    assert line(beat(records_committed=1000), replica=None, replicas=2) == "1000 of 1000 records done"


def test_what_it_is_told_comes_through_a_deferral() -> None:
    further = {"max_logprobs": 40, "compilation_config": {"mode": 0}}
    for told in (
        attempt(),
        attempt(None, 2),
        replace(attempt(), engine_args=further, cache_path="s3://c/a", table="s3://c/t"),
    ):
        assert WorkerAttempt.decode(told.encode()) == told


@pytest.mark.parametrize("replica", [0, None])
def test_every_worker_is_told_the_engines_arguments(replica: int | None) -> None:
    told = replace(attempt(replica, 2), engine_args={"max_logprobs": 40, "compilation_config": {"mode": "é"}})
    written = '--engine-args={"max_logprobs": 40, "compilation_config": {"mode": "\\u00e9"}}'
    assert told.arguments("-", grace_seconds=5).count(written) == 1
    assert told.follower_arguments("-", node=1, leader="first", grace_seconds=5).count(written) == 1
    plain = attempt(replica, 2)
    assert "engine" not in " ".join(plain.arguments("-", grace_seconds=5))
    assert "engine" not in " ".join(plain.follower_arguments("-", node=1, leader="first", grace_seconds=5))


@pytest.mark.parametrize("replica", [0, None])
def test_every_worker_is_told_the_table(replica: int | None) -> None:
    told = replace(attempt(replica, 2), table='{"prompt": "{{ a b }}"}')
    written = '--table={"prompt": "{{ a b }}"}'
    assert told.arguments("-", grace_seconds=5).count(written) == 1
    assert told.follower_arguments("-", node=1, leader="first", grace_seconds=5).count(written) == 1
    assert "--table" not in " ".join(attempt(replica, 2).arguments("-", grace_seconds=5))


def test_replicas_are_told_where_answers_are_kept_and_what_collects_is_not() -> None:
    told = replace(attempt(1, 2), cache_path="s3://c/a b")
    assert told.arguments("-", grace_seconds=5).count("--cache-path=s3://c/a b") == 1
    for other in (attempt(1, 2), replace(attempt(None, 2), cache_path="s3://c/a b")):
        assert "cache" not in " ".join(other.arguments("-", grace_seconds=5))
    assert "cache" not in " ".join(told.follower_arguments("-", node=1, leader="first", grace_seconds=5))


def test_records_for_which_nothing_was_generated_are_told() -> None:
    said = line(
        beat(0, records_committed=9, records_repeated=2, records_cached=4),
        beat(1, records_repeated=3),
        replica=1,
        replicas=2,
    )
    assert said == "9 of 1000 records done, 5 repeated, 4 cached; replica 1 of 2 is generating"
