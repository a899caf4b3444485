"""One replica of a job of several, as one mapped task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

from airflow_llmengine.exceptions import LLMEngineError
from airflow_llmengine.hooks.job_failure import job_failure
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.operators.batch_task import BatchTaskMixin
from airflow_llmengine.operators.replica_launch import (
    FAILURE_KEY,
    ReplicaLaunch,
    handle_of,
    joined_request,
    refuse_ended,
    refuse_superseded,
)

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_llmengine.hooks.local_launch import LocalLauncher
    from airflow_llmengine.spec.job_state import JobHandle


class LLMEngineReplicaMixin(BatchTaskMixin):
    """Does one replica's share of a job that another task launched, in front of a pod operator.

    It joins exactly the generation that was launched, also when it alone is retried or cleared; it never launches one.
    It has succeeded when nothing is left for it to do; whether the job has is judged by the task that collects.

    Args:
        launch: Which job, and which replica of it: an item of the XCom of ``LLMEnginePlanOperator``.
        plan_task_id: The task that launched the job, for messages.
        kwargs: The arguments of ``BatchTaskMixin``.
    """

    template_fields: Sequence[str] = (*BatchTaskMixin.template_fields, "launch")

    def __init__(self, *, launch: Mapping[str, Any] | XComArg, plan_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.launch = launch
        self.plan_task_id = plan_task_id

    def execute(self, context: Context) -> None:
        """Run the replica's worker to its end.

        Raises:
            LLMEngineError: Something is left to do; see ``airflow_llmengine.exceptions``.
        """
        try:
            self._run()
        except LLMEngineError as error:
            # The task that collects tells what it was.
            context["ti"].xcom_push(FAILURE_KEY, str(error))
            raise

    def _run(self) -> None:
        from airflow_llmengine.hooks.leftovers import WorkerMark

        hook = LLMEngineHook(self.llmengine_conn_id)
        launcher = self._make_launcher(hook)
        launch = cast("ReplicaLaunch", self.launch)
        handle = handle_of(launch)
        launcher.end_leftovers(WorkerMark(handle.path, launch["replica"], launch["series"]))
        if hook.read_manifest(handle) is not None:
            self.log.info("The job is done already; nothing is left to do for replica %d.", launch["replica"])
        else:
            self._work(hook, launcher, handle, launch)
        self._refuse_if_ended()

    def _work(self, hook: LLMEngineHook, launcher: LocalLauncher, handle: JobHandle, launch: ReplicaLaunch) -> None:
        from airflow_llmengine.hooks.local_launch import LocalAttempt
        from airflow_llmengine.operators.staging import encode_request
        from airflow_llmengine.spec.exit_codes import ExitCode

        request = joined_request(hook, self._checked_request(hook), handle, self.plan_task_id)
        status = hook.get(handle.path)
        refuse_superseded(status, handle, self.plan_task_id)
        refuse_ended(status, self.plan_task_id)
        # A later series that joined the same generation has put its own deadline there.
        deadline = launch["deadline"] if status.job is None else status.job.deadline
        outcome = launcher.run(
            LocalAttempt(
                handle=handle,
                owner=launch["owner"],
                series=launch["series"],
                request=encode_request(request),
                storage_options=hook.storage_options,
                deadline=deadline,
                max_error_rate=self._options().max_error_rate,
                replica=launch["replica"],
                replicas=launch["replicas"],
                launched_by=self.plan_task_id,
            )
        )
        self._refuse_if_ended()
        # The exit code says that its share is done; that the job is, is for collect to prove.
        if outcome.exit_code != ExitCode.DONE:
            raise job_failure(
                outcome.exit_code,
                outcome.last_error,
                handle=handle,
                deadline=deadline,
                status=hook.get(handle.path),
                series=launch["series"],
                launched_by=self.plan_task_id,
            )


class LLMEngineReplicaOperator(LLMEngineReplicaMixin, KubernetesPodOperator):
    """Does one replica's share of a job; see ``LLMEngineReplicaMixin``. It takes all options of the pod operator."""
