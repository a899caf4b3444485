"""What the task that plans a job hands to the tasks that run and collect it: by XCom, and never data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from airflow_llmengine.exceptions import (
    KEPT,
    DeadlineExceededError,
    JobCancelledError,
    JobSupersededError,
    RequestRefusedError,
)

if TYPE_CHECKING:
    from airflow_llmengine.hooks.llmengine import LLMEngineHook
    from airflow_llmengine.spec.job_state import JobHandle
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.storage.status import JobStatus

LAUNCH_KEY = "launch"
"""Key of the XCom under which the plan's launch is."""

JOB_KEY = "job"
"""Key of the XCom under which the plan's job handle is, for a sensor."""

FAILURE_KEY = "failure"
"""Key of the XCom under which a replica that failed says why."""


class GroupLaunch(TypedDict):
    """A job that was launched for several replicas."""

    job: dict[str, Any]
    """The job handle: each replica joins this generation, or none."""
    owner: str
    series: str
    deadline: float
    """Seconds since the epoch after which nothing of this series may run."""
    replicas: int
    model: dict[str, Any] | None
    """What the plan read of the model, so that not each replica asks the hub; None: nothing, or nothing is needed."""


class ReplicaLaunch(GroupLaunch):
    """One replica's part in it."""

    replica: int
    """From 0; the map index of its task."""


def handle_of(launch: Mapping[str, Any]) -> JobHandle:
    """The job handle in a launch."""
    from airflow_llmengine.spec.job_state import JobHandle

    return JobHandle.model_validate(launch["job"])


def joined_request(
    hook: LLMEngineHook, request: CreateBatchCompletionsV1Request, handle: JobHandle, plan_task_id: str
) -> CreateBatchCompletionsV1Request:
    """The request as the plan launched it: its large ``content`` is where the plan staged it.

    Whether it is the very same otherwise, the worker finds out: it computes the fingerprint.

    Raises:
        RequestRefusedError: It is a request for another output.
    """
    from airflow_llmengine.operators.launching import inline_limit
    from airflow_llmengine.operators.staging import refer_to_staged_content

    output = hook.output_url(request)
    if output != handle.path:
        raise RequestRefusedError(
            f"output_data_path is {output} in this task, and was {handle.path} in {plan_task_id}: give it so that all "
            f"tasks of the group render the same, or clear {plan_task_id} with its downstream tasks."
        )
    return refer_to_staged_content(hook.storage(), request, inline_limit(hook))


def refuse_superseded(status: JobStatus, handle: JobHandle, plan_task_id: str) -> None:
    """Refuse to touch an output that is another generation's by now.

    Args:
        status: What storage says of whatever is current at the job's output path.
        handle: The job that is to be joined.
        plan_task_id: The task that launched it.

    Raises:
        JobSupersededError: Another launch took over.
    """
    if status.handle is not None and status.handle != handle:
        raise JobSupersededError(
            f"Another launch took over {handle.path} since {plan_task_id} launched generation {handle.generation}. "
            f"Clear {plan_task_id} with its downstream tasks to take it back, or give each job an output of its own."
        )


def is_complete(status: JobStatus) -> bool:
    """Whether every chunk of a job is committed, so that only the output is to be put together."""
    return status.end is not None and status.chunks_committed >= status.end.chunks


def is_late(status: JobStatus) -> bool:
    """Whether a job's time is over."""
    return status.job is not None and time.time() >= status.job.deadline


def refuse_ended(status: JobStatus, plan_task_id: str) -> None:
    """Refuse to go on with a job that was cancelled, or whose time is over: only a new launch goes on with it.

    A job whose chunks are all committed is in time, whenever its output is put together.

    Raises:
        JobCancelledError, DeadlineExceededError: See each.
    """
    if status.cancelled is not None:
        raise JobCancelledError(
            f"The job was cancelled ({status.cancelled.reason}). {KEPT}. Clear {plan_task_id} with its downstream "
            "tasks, or start a new run, to go on."
        )
    if is_late(status) and not is_complete(status):
        raise DeadlineExceededError(
            f"max_runtime_sec is used up, retries included. {KEPT}. Clear {plan_task_id} with its downstream tasks, or "
            "start a new run, to go on with a new budget."
        )
