"""The last task of a job of several replicas: it puts the output together, or says what is missing, and why."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

from airflow_llmengine.exceptions import (
    KEPT,
    DeadlineExceededError,
    JobCancelledError,
    JobIncompleteError,
    JobInterruptedError,
    JobNotLaunchedError,
)
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
from airflow_llmengine.operators.job_result import JobResultMixin
from airflow_llmengine.operators.replica_launch import (
    FAILURE_KEY,
    LAUNCH_KEY,
    GroupLaunch,
    handle_of,
    is_complete,
    is_late,
    joined_request,
    refuse_ended,
    refuse_superseded,
)

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from airflow_llmengine.exceptions import LLMEngineError
    from airflow_llmengine.operators.worker_pod import WorkerEnd
    from airflow_llmengine.storage.status import JobStatus

COLLECT_SECONDS = 900.0
"""So long putting the output together may take at least, also where the job's deadline comes before, or is over."""

TOLD_REPLICAS = 3
"""Of how many failed replicas the message says why."""


class LLMEngineCollectMixin(JobResultMixin):
    """Puts together what the replicas of a job did. It runs when all of them have ended, however they did.

    It succeeds when a valid manifest of the job that was planned stands beside the output, and never otherwise. Its
    XCom is that of ``LLMEngineBatchCompletionsOperator``.

    Args:
        plan_task_id: The task that launched the job.
        replicas_task_id: The mapped task whose replicas did it.
        kwargs: The arguments of ``BatchTaskMixin``.
    """

    def __init__(self, *, plan_task_id: str, replicas_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan_task_id = plan_task_id
        self.replicas_task_id = replicas_task_id
        self._launch: GroupLaunch | None = None
        self._unfinished: dict[int, str] = {}
        self._reasons: list[str] = []

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render the templates, if there is a job at all: what they are made of may be missing like the job.

        Raises:
            JobNotLaunchedError: The plan did not succeed.
        """
        ti = cast("Any", context["ti"])
        states = ti.get_task_states(
            dag_id=ti.dag_id, task_ids=[self.plan_task_id, self.replicas_task_id], run_ids=[ti.run_id]
        ).get(ti.run_id, {})
        planned = str(states.get(self.plan_task_id))
        # An earlier attempt's XCom outlives a plan that did not get as far as to begin.
        self._launch = ti.xcom_pull(task_ids=self.plan_task_id, key=LAUNCH_KEY) if planned == "success" else None
        if self._launch is None:
            raise JobNotLaunchedError(
                f"There is nothing to collect, for {self.plan_task_id} launched no job: its state is {planned}. See to "
                "it, or to what comes before it, and clear it with its downstream tasks."
            )
        self._unfinished = _unfinished(states, self.replicas_task_id)
        super().render_template_fields(context, jinja_env)

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Put the output together, or find that it stands, and give the job's summary.

        Raises:
            LLMEngineError: The job did not succeed; see ``airflow_llmengine.exceptions``.
        """
        from airflow_llmengine.operators.staging import told_table

        hook = LLMEngineHook(self.llmengine_conn_id)
        options = self._options()
        self._prepare(hook)
        launch = self._launch
        if launch is None:
            raise JobNotLaunchedError(f"{self.plan_task_id} did not launch the job.")
        handle = handle_of(launch)
        manifest = hook.read_manifest(handle)
        if manifest is not None:
            self._tidy_pods(context)
            return self._succeed(context, manifest, options.max_error_rate)
        self._reasons = self._reasons_of(context["ti"])
        request = joined_request(hook, self._checked_request(hook), handle, self.plan_task_id)
        status = hook.get(handle.path)
        refuse_superseded(status, handle, self.plan_task_id)
        self._refuse_ended(context, status)
        deadline = launch["deadline"] if status.job is None else status.job.deadline
        attempt = WorkerAttempt(
            handle=handle,
            owner=launch["owner"],
            series=launch["series"],
            deadline=max(deadline, time.time() + COLLECT_SECONDS),
            max_error_rate=options.max_error_rate,
            engine_args=options.engine_args,
            table=told_table(hook.storage(), handle, options.table),
            replica=None,
            replicas=launch["replicas"],
            launched_by=self.plan_task_id,
        )
        self._end_leftovers(handle.path, None, launch["series"])
        return self._conclude(context, hook, attempt, self._run_worker(context, hook, attempt, request))

    def trigger_reentry(self, context: Context, event: dict[str, Any], attempt: Mapping[str, Any] | None = None) -> Any:
        """Go on when the trigger has fired; see ``WorkerPodMixin``."""
        self._reasons = self._reasons_of(context["ti"])
        return super().trigger_reentry(context, event, attempt)

    def _refuse_ended(self, context: Context, status: JobStatus) -> None:
        """Refuse where nobody may do what is missing: a worker could not say more."""
        if is_complete(status):
            return
        try:
            refuse_ended(status, self.plan_task_id)
        except (DeadlineExceededError, JobCancelledError) as error:
            # A pod that waits for a node does not end at the deadline.
            self._tidy_pods(context)
            raise type(error)(f"{self._told(status)} {error}") from None

    def _conclude(
        self, context: Context, hook: LLMEngineHook, attempt: WorkerAttempt, end: WorkerEnd
    ) -> dict[str, Any]:
        manifest = hook.read_manifest(attempt.handle)
        self._refuse_if_ended()
        if manifest is None:
            raise self._failure(end, attempt, hook.get(attempt.handle.path))
        for reason in self._reasons:
            self.log.warning("%s Others did its work.", reason)
        return self._succeed(context, manifest, attempt.max_error_rate)

    def _failure(self, end: WorkerEnd, attempt: WorkerAttempt, status: JobStatus) -> LLMEngineError:
        if is_complete(status):
            # That replicas were stopped at the deadline is over.
            status = replace(status, heartbeats=[])
        elif status.job is not None:
            attempt = replace(attempt, deadline=status.job.deadline)
        failure = end.failure(
            attempt, status, series=None, launched_by=f"{self.plan_task_id} with its downstream tasks"
        )
        told = self._told(status)
        if isinstance(failure, DeadlineExceededError | JobCancelledError):
            return type(failure)(f"{told} {failure}")
        if isinstance(failure, JobInterruptedError) and is_complete(status):
            again = (
                f"Clear {self.plan_task_id} with its downstream tasks to make those again"
                if is_late(status)
                else "Clear the replicas, with their downstream tasks, to make those again within this "
                f"max_runtime_sec; or {self.plan_task_id} for a new one"
            )
            return JobIncompleteError(f"Too many records failed: {end.said}. {KEPT}. {again}.")
        if isinstance(failure, JobInterruptedError):
            return JobIncompleteError(
                f"{told} {KEPT}. Clear the replicas that failed, with their downstream tasks, to go on within this "
                f"max_runtime_sec; or {self.plan_task_id} for a new one."
            )
        return failure

    def _told(self, status: JobStatus) -> str:
        """What is missing, and why."""
        return " ".join([f"{_missing(status)}.", *self._reasons])

    def _reasons_of(self, ti: Any) -> list[str]:
        """A sentence for each of the first replicas that did not succeed."""
        told = list(self._unfinished.items())[:TOLD_REPLICAS]
        if not told:
            return []
        indexes = [replica for replica, _state in told]
        messages = ti.xcom_pull(task_ids=self.replicas_task_id, key=FAILURE_KEY, map_indexes=indexes)
        sentences = [
            f"Replica {replica}: {_first_sentence(message) if message else f'its state is {state}; see its log.'}"
            for (replica, state), message in zip(told, messages, strict=True)
        ]
        more = len(self._unfinished) - len(told)
        return [*sentences, f"{more} more replicas did not succeed."] if more else sentences


class LLMEngineCollectOperator(LLMEngineCollectMixin, KubernetesPodOperator):
    """Puts together what the replicas of a job did; see ``LLMEngineCollectMixin``. Its pod asks for no GPU."""


def _unfinished(states: Mapping[str, Any], task_id: str) -> dict[int, str]:
    """The replicas that did not succeed, with their states."""
    found = {}
    for name, state in states.items():
        match = re.fullmatch(rf"{re.escape(task_id)}_([0-9]+)", name)
        if match is not None and str(state) not in ("success", "removed"):
            found[int(match.group(1))] = str(state)
    return dict(sorted(found.items()))


def _missing(status: JobStatus) -> str:
    if status.end is None:
        return "The job is not done: no replica has read the input to its end"
    return (
        f"The job is not done: {status.end.chunks - status.chunks_committed} of {status.end.chunks} chunks are missing"
    )


def _first_sentence(message: str) -> str:
    match = re.match(r".*?[.!?](?=\s|$)", message, re.DOTALL)
    return match.group() if match is not None else message
