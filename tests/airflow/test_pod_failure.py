"""Each way in which a pod can end or be refused, and the exception that it becomes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from airflow_llmengine.exceptions import (
    ClusterUnavailableError,
    ConnectionUnusableError,
    DeadlineExceededError,
    EngineDiedError,
    ImagePullError,
    ImageUnavailableError,
    InputRefusedError,
    JobCancelledError,
    JobInterruptedError,
    JobSupersededError,
    LLMEngineError,
    ModelOutOfMemoryError,
    ModelOutOfStorageError,
    NodeLostError,
    PodDeletedError,
    PodEvictedError,
    PodFailedError,
    PodMisconfiguredError,
    PodPreemptedError,
    PodQuotaError,
    PodRejectedError,
    PodStartError,
    PodUnschedulableError,
    ResultMissingError,
    StorageFailedError,
    WorkerDiedError,
    WorkerOutOfMemoryError,
    WorkerOutOfStorageError,
)
from airflow_llmengine.hooks.pod_failure import last_error, pod_failure, rejected
from airflow_llmengine.kube.diagnosis import Diagnosis
from airflow_llmengine.kube.finding import Kind
from airflow_llmengine.kube.rejection import Kind as Refusal
from airflow_llmengine.spec.job_state import CancelRequest, Heartbeat, JobDocument, JobHandle
from airflow_llmengine.storage.status import JobStatus
from tests.kube.states import BY_NAME, STATES
from tests.kube.test_rejection import ANSWERS, EXPECTED, SECRETS

HANDLE = JobHandle(path="/out.json", fingerprint="abc", generation=2)
DEADLINE = 1000.0


def failure(diagnosis: Diagnosis | str | None, *, now: float = 10.0, **status: Any) -> LLMEngineError:
    found = JobStatus(**{"state": "stopped", "handle": HANDLE, **status})
    if isinstance(diagnosis, str):
        diagnosis = BY_NAME[diagnosis].diagnosis()
    return pod_failure(
        diagnosis, handle=HANDLE, deadline=DEADLINE, status=found, series="s", launched_by="the task plan", now=now
    )


OF_KIND: dict[Kind, type[LLMEngineError]] = {
    "pending": PodStartError,
    "queued": PodUnschedulableError,
    "unschedulable": PodUnschedulableError,
    "image_pull_failing": ImagePullError,
    "image_unavailable": ImageUnavailableError,
    "misconfigured": PodMisconfiguredError,
    "volume_not_mounted": PodStartError,
    "not_started": PodStartError,
    "refused_by_node": PodStartError,
    "running": PodFailedError,
    "succeeded": ResultMissingError,
    "out_of_memory": WorkerOutOfMemoryError,
    "out_of_storage": WorkerOutOfStorageError,
    "evicted": PodEvictedError,
    "preempted": PodPreemptedError,
    "node_lost": NodeLostError,
    "deadline_exceeded": DeadlineExceededError,
    "deleted": PodDeletedError,
}

OF_EXIT = {
    "exit_64": InputRefusedError,
    "engine_died": EngineDiedError,
    "unreachable_storage": StorageFailedError,
    "saved_beside_an_out_of_memory": JobInterruptedError,
    "exit_1": WorkerDiedError,
    "killed": WorkerDiedError,
    "told_to_end": WorkerDiedError,
    "segmentation_fault": WorkerDiedError,
}


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_every_state_of_a_pod_has_its_exception(state: Any) -> None:
    diagnosis = state.diagnosis()
    error = failure(diagnosis, chunks_committed=1)
    assert type(error) is (OF_EXIT[state.name] if state.kind == "exited" else OF_KIND[state.kind])
    message = str(error)
    assert message.endswith(".")
    assert ".." not in message
    assert "kept" in message or "Nothing is lost" in message
    assert error.retry_helps == ("a retry" in message)
    if not error.retry_helps:
        assert "lear the task plan" in message
    assert "secret prompt" not in message
    if isinstance(error, PodFailedError | WorkerDiedError):
        assert message.startswith(diagnosis.sentence.rstrip("."))


def test_no_kind_is_forgotten() -> None:
    assert OF_KIND.keys() | {"exited"} == set(get_args(Kind))
    assert OF_EXIT.keys() == {state.name for state in STATES if state.kind == "exited"}


def test_a_pod_that_is_gone_after_its_success_left_no_result() -> None:
    assert type(failure(None)) is ResultMissingError


def heartbeat(**progress: Any) -> Heartbeat:
    known = {"replica": 0, "replicas": 1, "phase": "loading", "host": "h", "pid": 1, "started": 1, "updated": 1}
    return Heartbeat(**{**known, **progress})


@pytest.mark.parametrize(
    ("name", "never", "again"),
    [
        ("out_of_memory", ModelOutOfMemoryError, WorkerOutOfMemoryError),
        ("storage_limit_exceeded", ModelOutOfStorageError, WorkerOutOfStorageError),
        ("empty_dir_limit_exceeded", ModelOutOfStorageError, WorkerOutOfStorageError),
    ],
)
def test_a_model_that_does_not_fit_is_not_tried_again(
    name: str, never: type[LLMEngineError], again: type[LLMEngineError]
) -> None:
    for heartbeats in ([], [heartbeat()], [heartbeat(phase="starting")]):
        error = failure(name, heartbeats=heartbeats)
        assert type(error) is never
        assert "does not fit" in str(error)
    assert type(failure(name, chunks_committed=1)) is again
    for progress in ({"phase": "generating"}, {"records_done": 1}, {"records_committed": 1}, {"records_open": 1}):
        assert type(failure(name, heartbeats=[heartbeat(), heartbeat(**progress)])) is again


def test_memory_that_ran_out_without_a_limit_was_the_nodes() -> None:
    assert type(failure("out_of_memory_without_limit")) is WorkerOutOfMemoryError


@pytest.mark.parametrize(
    "name", ["deleted_and_saved", "condition_preempted", "out_of_memory", "killed", "image_missing", "no_such_gpu_free"]
)
def test_a_job_that_was_ended_meanwhile_is_not_tried_again_whatever_ended_the_pod(name: str) -> None:
    cancelled = CancelRequest(fingerprint="abc", generation=2, reason="too dear", requested=5)
    assert type(failure(name, cancelled=cancelled)) is JobCancelledError
    assert type(failure(name, handle=HANDLE.model_copy(update={"generation": 3}))) is JobSupersededError
    assert type(failure(name, now=DEADLINE + 1)) is DeadlineExceededError
    job = JobDocument(
        plugin_version="1", request={}, owner="o", series="another", created=1, launched=1, deadline=DEADLINE
    )
    assert type(failure(name, job=job)) is JobSupersededError


def test_the_workers_own_last_error_is_told_and_no_line_but_its_own() -> None:
    assert "the engine has died; it was started again 3 times" in str(failure("engine_died"))
    assert "503 SlowDown" in str(failure("unreachable_storage"))


def line(level: str, message: str) -> str:
    return json.dumps({"level": level, "logger": "airflow_llmengine.worker", "message": message})


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("", ""),
        ("prompt", ""),
        (line("INFO", "a"), ""),
        (f"{line('ERROR', 'a')}\n{line('ERROR', 'b')}\n{line('INFO', 'c')}\nprompt\n", "b"),
        (line("CRITICAL", "a"), "a"),
        (line("ERROR", "a")[5:], ""),
        (f"{line('ERROR', 'a')}\r\n", "a"),
    ],
)
def test_the_last_error_is_found_among_other_lines(said: str, error: str) -> None:
    assert last_error(Diagnosis("exited", "s.", started=True, exit_code=69, termination_message=said)) == error


OF_REFUSAL: dict[Refusal, type[LLMEngineError]] = {
    "quota": PodQuotaError,
    "beyond_quota": PodRejectedError,
    "forbidden": PodRejectedError,
    "unauthorized": ConnectionUnusableError,
    "admission": PodRejectedError,
    "invalid": PodRejectedError,
    "namespace_missing": PodRejectedError,
    "priority_class_missing": PodRejectedError,
    "service_account_missing": PodRejectedError,
    "conflict": PodStartError,
    "unavailable": ClusterUnavailableError,
    "other": PodRejectedError,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_refusal_has_its_exception(name: str) -> None:
    answer = ANSWERS[name]
    kind, sentence = EXPECTED[name]
    error = rejected(
        SimpleNamespace(status=answer["status"], body=json.dumps(answer["body"])), hidden=["hf_secret_value"]
    )
    assert type(error) is OF_REFUSAL[kind]
    assert str(error).startswith(sentence)
    assert str(error).endswith(".")
    assert error.retry_helps == ("a retry" in str(error)) == ("clear the task" not in str(error))
    assert not any(secret in str(error) for secret in SECRETS)


def test_an_answer_nobody_foresaw_is_refused() -> None:
    assert OF_REFUSAL.keys() == set(get_args(Refusal))
    assert type(rejected(SimpleNamespace(status=418, body="teapot"))) is PodRejectedError
