"""From how a pod ended, or why there is none, to the exception that the task raises."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_llmengine.exceptions import (
    KEPT,
    ClusterUnavailableError,
    ConnectionUnusableError,
    DeadlineExceededError,
    ImagePullError,
    ImageUnavailableError,
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
    WorkerDiedError,
    WorkerOutOfMemoryError,
    WorkerOutOfStorageError,
)
from airflow_llmengine.hooks.job_failure import RETRIED, job_failure
from airflow_llmengine.hooks.local_worker import parse_log_line
from airflow_llmengine.spec.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_llmengine.exceptions import LLMEngineError
    from airflow_llmengine.kube.diagnosis import Diagnosis
    from airflow_llmengine.kube.diagnosis import Kind as End
    from airflow_llmengine.kube.rejection import Kind as Refusal
    from airflow_llmengine.spec.job_state import JobHandle
    from airflow_llmengine.storage.status import JobStatus

_NOTHING_LOST: Final = "Nothing is lost, and a retry goes on where the job stands"

_LATER: Final[dict[End, tuple[type[PodFailedError], str]]] = {
    "pending": (PodStartError, f"{_NOTHING_LOST}. If it happens again, look at the pod's events."),
    "queued": (
        PodUnschedulableError,
        (
            f"{_NOTHING_LOST}. If it happens again, look at the queue, or give the pod more time "
            "(schedule_timeout_seconds)."
        ),
    ),
    "unschedulable": (
        PodUnschedulableError,
        f"{_NOTHING_LOST}. If the cluster never has such a node, correct gpus, gpu_type, cpus or memory.",
    ),
    "image_pull_failing": (
        ImagePullError,
        (
            f"{_NOTHING_LOST}. If it happens again, look at the registry, or give the pod more time "
            "(startup_timeout_seconds)."
        ),
    ),
    "volume_not_mounted": (PodStartError, f"{_NOTHING_LOST}. If it happens again, look at the volume."),
    "not_started": (PodStartError, f"{_NOTHING_LOST}. If it happens again, look at the pod's events and its log."),
    "refused_by_node": (PodStartError, f"{_NOTHING_LOST}."),
    "running": (PodFailedError, f"The task does not wait for it any more. {RETRIED}."),
    "preempted": (PodPreemptedError, f"{RETRIED}. A higher `priority` makes it rarer."),
    "evicted": (PodEvictedError, f"{RETRIED}."),
    "node_lost": (NodeLostError, f"{RETRIED}."),
    "deleted": (PodDeletedError, f"{RETRIED}."),
}
"""Ends after which a retry helps, whatever had been done by then."""

_NEVER: Final[dict[End, tuple[type[PodFailedError], str]]] = {
    "image_unavailable": (
        ImageUnavailableError,
        "Correct the image of the connection or the operator, or its pull Secret",
    ),
    "misconfigured": (PodMisconfiguredError, "Correct it"),
}
"""Ends after which somebody has to do something first."""


def pod_failure(
    diagnosis: Diagnosis | None,
    *,
    handle: JobHandle,
    deadline: float,
    status: JobStatus,
    series: str | None = None,
    launched_by: str = "the task",
    retried: str = RETRIED,
    now: float | None = None,
) -> LLMEngineError:
    """Make the exception for a worker whose pod ended without a valid manifest, or never started.

    Args:
        diagnosis: What happened to the pod; None: it succeeded, and is gone.
        handle: The job.
        deadline: Seconds since the epoch after which nothing of the job may run.
        status: What storage says of whatever is current at the job's output path.
        series: The series of attempts that the worker belonged to.
        launched_by: What to clear for a new launch.
        retried: What to expect where a retry of the task that made the pod helps: that of a sensor waits only.
        now: Seconds since the epoch, for tests; the clock's time by default.
    """

    def by_worker(exit_code: int, message: str) -> LLMEngineError:
        return job_failure(
            exit_code,
            message,
            handle=handle,
            deadline=deadline,
            status=status,
            series=series,
            launched_by=launched_by,
            retried=retried,
            now=now,
        )

    if diagnosis is None or diagnosis.kind == "succeeded":
        return by_worker(ExitCode.DONE, "")
    if diagnosis.kind == "exited" and diagnosis.exit_code in set(ExitCode):
        return by_worker(diagnosis.exit_code or ExitCode.DONE, last_error(diagnosis))
    # Whatever ended the pod: the job may have been ended before, and then no retry would be let in.
    stopped = by_worker(ExitCode.PARTIAL, "")
    if not stopped.retry_helps:
        return stopped
    if diagnosis.kind == "deadline_exceeded":
        return DeadlineExceededError(
            f"max_runtime_sec is used up, retries included, and Kubernetes ended the pod. {KEPT}. Raise it if it is "
            f"too short; clear {launched_by}, or start a new run, to go on with a new budget."
        )
    if diagnosis.kind == "exited":
        return WorkerDiedError(f"{diagnosis.sentence} {retried}. Its log may say more.")
    if diagnosis.kind == "out_of_memory":
        return _out_of_memory(diagnosis, status, launched_by, retried)
    if diagnosis.kind == "out_of_storage":
        return _out_of_storage(diagnosis, status, launched_by, retried)
    if diagnosis.kind in _NEVER:
        never, remedy = _NEVER[diagnosis.kind]
        return never(f"{diagnosis.sentence} {remedy}, and clear {launched_by}; {KEPT[0].lower()}{KEPT[1:]}.")
    later, outlook = _LATER[diagnosis.kind]
    if retried != RETRIED:
        outlook = outlook.replace(_NOTHING_LOST, retried).replace(RETRIED, retried)
    return later(f"{diagnosis.sentence} {outlook}")


def last_error(diagnosis: Diagnosis) -> str:
    """Why the worker says it failed: its last log line at ERROR or above; empty where it left none.

    The termination message is the end of the container's log: other lines in it are of libraries, and may quote
    prompts.
    """
    errors = (parse_log_line(line) for line in reversed(diagnosis.termination_message.splitlines()))
    return next((message for level, message in errors if level >= logging.ERROR), "")


def _out_of_memory(diagnosis: Diagnosis, status: JobStatus, launched_by: str, retried: str) -> PodFailedError:
    if diagnosis.limit is None or _has_generated(status):
        return WorkerOutOfMemoryError(
            f"{diagnosis.sentence} {retried}; a record that does it again is found and left out. Or give the worker "
            "more `memory`."
        )
    return ModelOutOfMemoryError(
        f"{diagnosis.sentence} Nothing was generated by then: the model does not fit. Raise `memory`, which the "
        f"model's weights pass through, and clear {launched_by}."
    )


def _out_of_storage(diagnosis: Diagnosis, status: JobStatus, launched_by: str, retried: str) -> PodFailedError:
    if _has_generated(status):
        return WorkerOutOfStorageError(
            f"{diagnosis.sentence} {retried}. Raise `storage`, which holds the log, /tmp and, without a cache volume, "
            "the model's weights."
        )
    return ModelOutOfStorageError(
        f"{diagnosis.sentence} Nothing was generated by then: the model does not fit. Raise `storage`, or give the "
        f"connection a cache volume for weights, and clear {launched_by}."
    )


def _has_generated(status: JobStatus) -> bool:
    """Whether any worker of the job came so far as to generate. All of them have the same limits."""
    return status.chunks_committed > 0 or any(
        beat.phase == "generating" or beat.records_done or beat.records_committed or beat.records_open
        for beat in status.heartbeats
    )


_REMEDIES: Final[dict[Refusal, str]] = {
    "beyond_quota": "Ask for less, or have the quota raised, and clear the task.",
    "forbidden": "Have that permitted, and clear the task.",
    "admission": "Change the pod to what the cluster admits, or have the rule changed, and clear the task.",
    "invalid": "Correct it in the request, the connection or the operator's pod options, and clear the task.",
    "namespace_missing": "Correct the namespace of the connection or the operator, and clear the task.",
    "priority_class_missing": "Correct `priority`, or have the class made, and clear the task.",
    "service_account_missing": "Correct it in the connection or the operator, or have it made, and clear the task.",
}


def rejected(api_exception: Any, *, hidden: Iterable[str] = ()) -> LLMEngineError:
    """Make the exception for a pod, or an object that belongs to it, that the API server did not take.

    Args:
        api_exception: ``ApiException`` of either Python client.
        hidden: Values that no message may quote, such as those of the pod's environment variables.
    """
    from airflow_llmengine.kube.rejection import rejection

    found = rejection(api_exception.status, api_exception.body, hidden=hidden)
    if found.kind == "quota":
        return PodQuotaError(f"{found.sentence} {_NOTHING_LOST}, as soon as others have given theirs back.")
    if found.kind == "unavailable":
        return ClusterUnavailableError(f"{found.sentence} {_NOTHING_LOST}.")
    if found.kind == "conflict":
        return PodStartError(f"{found.sentence} {_NOTHING_LOST}.")
    if found.kind == "unauthorized":
        return ConnectionUnusableError(f"{found.sentence} Correct the Kubernetes connection, and clear the task.")
    return PodRejectedError(f"{found.sentence} {_REMEDIES.get(found.kind, 'Correct it, and clear the task.')}")
