"""When a task is tried again, by what went wrong."""

from __future__ import annotations

import inspect
import json
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction

from airflow_llmengine import exceptions
from airflow_llmengine.exceptions import (
    EngineDiedError,
    JobIncompleteError,
    LLMEngineError,
    ModelSizeUnknownError,
    NodeLostError,
    PodPreemptedError,
    PodQuotaError,
    PodUnschedulableError,
    ResultMissingError,
    TaskKilledError,
)
from airflow_llmengine.retry_policy import LLMEngineRetryPolicy

POLICY = LLMEngineRetryPolicy()


def wait(exception: BaseException, try_number: int = 1, policy: LLMEngineRetryPolicy = POLICY) -> Any:
    decision = policy.evaluate(exception, try_number, 99)
    return decision.retry_delay if decision.action is RetryAction.RETRY else decision.action


@pytest.mark.parametrize("kind", [PodPreemptedError, NodeLostError])
def test_a_pod_that_others_ended_is_made_again_at_once_each_time(kind: type[LLMEngineError]) -> None:
    assert wait(kind("said"), 1) == wait(kind("said"), 9) == timedelta(seconds=15)


@pytest.mark.parametrize("kind", [PodQuotaError, PodUnschedulableError])
def test_a_full_cluster_is_waited_for_longer_and_longer(kind: type[LLMEngineError]) -> None:
    waits = [wait(kind("said"), number) for number in range(1, 7)]
    assert waits == [timedelta(minutes=minutes) for minutes in (5, 10, 20, 40, 60, 60)]
    assert wait(kind("said"), 10_000) == timedelta(hours=1)


@pytest.mark.parametrize("kind", [EngineDiedError, ModelSizeUnknownError])
def test_a_fault_is_given_time_to_pass(kind: type[LLMEngineError]) -> None:
    assert [wait(kind("said"), number) for number in (1, 2, 3)] == [timedelta(minutes=minutes) for minutes in (1, 2, 4)]


def test_what_does_not_help_is_not_tried() -> None:
    assert wait(JobIncompleteError("said")) is RetryAction.FAIL


@pytest.mark.parametrize(
    "exception", [ValueError("x"), KeyboardInterrupt(), TaskKilledError("x"), ResultMissingError("x")]
)
def test_of_the_rest_the_task_decides(exception: BaseException) -> None:
    assert wait(exception) is RetryAction.DEFAULT


def test_every_error_that_a_cluster_brings_about_has_its_wait() -> None:
    found = [value for _, value in inspect.getmembers(exceptions, inspect.isclass) if issubclass(value, LLMEngineError)]
    for kind in found:
        decided = wait(kind("said"))
        if not kind.retry_helps:
            assert decided is RetryAction.FAIL
        elif issubclass(kind, exceptions.PodFailedError) and kind is not exceptions.PodFailedError:
            assert isinstance(decided, timedelta), kind


def test_the_reason_names_the_error_and_quotes_nothing() -> None:
    for kind in (PodPreemptedError, PodQuotaError, EngineDiedError, JobIncompleteError):
        reason = POLICY.evaluate(kind("a message"), 1, 3).reason
        assert reason is not None
        assert kind.__name__ in reason
        assert "a message" not in reason
        assert len(reason) < 500  # as long as Airflow's column


def test_waits_can_be_chosen() -> None:
    policy = LLMEngineRetryPolicy(
        after_disruption=timedelta(0), for_room=timedelta(hours=3), longest=timedelta(minutes=7)
    )
    assert wait(PodPreemptedError("said"), policy=policy) == timedelta(0)
    assert wait(PodQuotaError("said"), policy=policy) == timedelta(minutes=7)
    with pytest.raises(ValueError, match="for_room"):
        LLMEngineRetryPolicy(for_room=timedelta(seconds=-1))


def test_it_survives_being_written_down() -> None:
    policy = LLMEngineRetryPolicy(for_room=timedelta(minutes=3))
    written = json.loads(json.dumps(policy.serialize()))
    read = LLMEngineRetryPolicy.deserialize(written)
    assert vars(read) == vars(policy)


DAG = """\
from airflow.sdk import DAG, task

from airflow_llmengine.exceptions import PodPreemptedError
from airflow_llmengine.retry_policy import LLMEngineRetryPolicy

with DAG("retried", default_args={"retries": 5, "retry_policy": LLMEngineRetryPolicy()}):

    @task
    def preempted():
        raise PodPreemptedError("said")

    @task
    def other():
        raise ValueError("said")

    preempted()
    other()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "waits", "why"),
    [
        ("preempted", 15.0, "PodPreemptedError"),
        ("other", None, ""),
    ],
)
def test_airflow_does_as_the_policy_says(
    task: str, waits: float | None, why: str, tmp_path: Path, airflow_environment: dict[str, str]
) -> None:
    """A real supervisor, task and database: the scheduler reads from there when the next try is due."""
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "retried.py").write_text(DAG)
    script = Path(__file__).parent / "task_process.py"
    done = subprocess.run(
        [sys.executable, str(script), "run", "retried", task, "run-1"],
        env=airflow_environment | {"AIRFLOW__CORE__DAGS_FOLDER": str(dags)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "state: up_for_retry" in done.stdout, done.stdout + done.stderr
    database = airflow_environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].removeprefix("sqlite:///")
    connection = sqlite3.connect(database)
    try:
        found = connection.execute(
            "select retry_delay_override, retry_reason from task_instance where task_id = ?", [task]
        ).fetchall()
    finally:
        connection.close()
    ((delay, reason),) = found
    assert delay == waits
    assert why in (reason or "")
    assert bool(reason) == bool(why)
