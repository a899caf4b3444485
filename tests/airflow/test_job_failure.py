"""Each way in which a worker can end without a result, and the exception that it becomes."""

from __future__ import annotations

import inspect
import signal
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_llmengine import exceptions
from airflow_llmengine.exceptions import (
    DeadlineExceededError,
    EngineDiedError,
    InputRefusedError,
    JobCancelledError,
    JobInterruptedError,
    JobSupersededError,
    LLMEngineError,
    ResultMissingError,
    StorageFailedError,
    TooManyFailedRecordsError,
    WorkerDiedError,
)
from airflow_llmengine.hooks.job_failure import job_failure
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.job_state import CancelRequest, Heartbeat, JobDocument, JobHandle
from airflow_llmengine.storage.status import JobStatus

HANDLE = JobHandle(path="/out.json", fingerprint="abc", generation=2)
DEADLINE = 1000.0


def failure(exit_code: int, message: str = "", *, now: float = 10.0, **status: Any) -> LLMEngineError:
    found = JobStatus(**{"state": "stopped", "handle": HANDLE, **status})
    return job_failure(exit_code, message, handle=HANDLE, deadline=DEADLINE, status=found, series="s", now=now)


def heartbeat(stop_reason: str | None, updated: float) -> Heartbeat:
    return Heartbeat(
        replica=0, replicas=1, phase="partial", host="h", pid=1, started=1, updated=updated, stop_reason=stop_reason
    )


def launched(at: float) -> JobDocument:
    return JobDocument(
        plugin_version="1", request={}, owner="o", series="s", created=at, launched=at, deadline=DEADLINE
    )


@pytest.mark.parametrize(
    ("exit_code", "kind"),
    [
        (ExitCode.BAD_REQUEST, InputRefusedError),
        (ExitCode.TOO_MANY_FAILED_RECORDS, TooManyFailedRecordsError),
        (ExitCode.ENGINE_DIED, EngineDiedError),
        (ExitCode.INTERNAL, WorkerDiedError),
        (ExitCode.STORAGE_UNREACHABLE, StorageFailedError),
        (ExitCode.PARTIAL, JobInterruptedError),
        (ExitCode.DONE, ResultMissingError),
        (-signal.SIGKILL, WorkerDiedError),
        (-signal.SIGSEGV, WorkerDiedError),
        (1, WorkerDiedError),
        (127, WorkerDiedError),
    ],
)
def test_every_exit_code_has_its_exception(exit_code: int, kind: type[LLMEngineError]) -> None:
    error = failure(exit_code, "the worker's sentence")
    assert type(error) is kind
    if exit_code in set(ExitCode):
        # The two contracts say the same about a retry.
        assert error.retry_helps == ExitCode(exit_code).retry_helps
    if exit_code not in (ExitCode.DONE, -signal.SIGKILL, 1, 127):
        assert "the worker's sentence." in str(error)
    assert "kept" in str(error)


def test_no_exit_code_is_forgotten() -> None:
    assert {type(failure(code)) for code in ExitCode} >= {InputRefusedError, JobInterruptedError, ResultMissingError}
    assert all("exit code" not in str(failure(code)) for code in ExitCode)


def test_a_kill_tells_of_memory_and_others_their_signal() -> None:
    assert "memory" in str(failure(-signal.SIGKILL))
    assert "SIGSEGV" in str(failure(-signal.SIGSEGV))
    assert "exit code 127" in str(failure(127))


def test_why_a_worker_stopped_early_is_read_from_storage() -> None:
    cancelled = CancelRequest(fingerprint="abc", generation=2, reason="too dear", requested=5)
    assert isinstance(failure(ExitCode.PARTIAL, cancelled=cancelled), JobCancelledError)
    assert "too dear" in str(failure(ExitCode.PARTIAL, cancelled=cancelled))
    other = HANDLE.model_copy(update={"generation": 3})
    assert isinstance(failure(ExitCode.PARTIAL, handle=other), JobSupersededError)
    assert isinstance(failure(ExitCode.PARTIAL, now=DEADLINE + 1), DeadlineExceededError)
    ended: dict[str, Any] = {"heartbeats": [heartbeat("deadline", 900)], "job": launched(100)}
    assert isinstance(failure(ExitCode.PARTIAL, **ended), DeadlineExceededError)
    of_an_earlier_series: dict[str, Any] = {"heartbeats": [heartbeat("deadline", 90)], "job": launched(100)}
    assert isinstance(failure(ExitCode.PARTIAL, **of_an_earlier_series), JobInterruptedError)
    assert isinstance(failure(ExitCode.PARTIAL, heartbeats=[heartbeat("terminated", 900)]), JobInterruptedError)


def classes() -> list[type[LLMEngineError]]:
    found = [value for _, value in inspect.getmembers(exceptions, inspect.isclass)]
    return [value for value in found if issubclass(value, LLMEngineError)]


@pytest.mark.parametrize("kind", classes())
def test_retry_helps_and_what_airflow_does_agree(kind: type[LLMEngineError]) -> None:
    assert issubclass(kind, AirflowException)
    assert kind.retry_helps != issubclass(kind, AirflowFailException)
    assert kind.__doc__
    assert str(kind("said")) == "said"


def test_the_modules_text_is_the_tree() -> None:
    text = exceptions.__doc__ or ""
    drawn = {}
    for line in text.splitlines():
        name = line.strip(" ├└─│").partition(" ")[0]
        if name.endswith("Error"):
            drawn[name] = ("─" in line and len(line) - len(line.lstrip(" │├└─")), " * " in line)
    assert set(drawn) == {kind.__name__ for kind in classes()}
    for kind in classes():
        depth, starred = drawn[kind.__name__]
        assert starred != kind.retry_helps
        parents = [base for base in kind.__mro__[1:] if base in classes()]
        assert not parents or depth > drawn[parents[0].__name__][0]


def test_a_worker_that_another_run_of_the_same_job_replaced_is_not_started_again() -> None:
    """Or each would end the other's worker, retry by retry."""
    other = launched(5).model_copy(update={"series": "another run"})
    error = failure(ExitCode.PARTIAL, "a later attempt of replica 0 has begun", job=other)
    assert type(error) is JobSupersededError
    assert isinstance(error, AirflowFailException)
    assert "Another run launched the same job" in str(error)
    assert type(failure(ExitCode.PARTIAL, job=launched(5))) is JobInterruptedError
