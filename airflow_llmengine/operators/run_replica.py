"""One replica of a job of several, as one mapped task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

from airflow_llmengine.exceptions import JobFailedError, LLMEngineError
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.operators.replica_launch import (
    FAILURE_KEY,
    ReplicaLaunch,
    handle_of,
    is_complete,
    is_late,
    joined_request,
    refuse_ended,
    refuse_superseded,
)
from airflow_llmengine.operators.worker_hardware import decode_model
from airflow_llmengine.operators.worker_task import WorkerTaskMixin

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
    from airflow_llmengine.operators.worker_pod import WorkerEnd


class LLMEngineReplicaMixin(WorkerTaskMixin):
    """Does one replica's share of a job that another task launched, in front of a pod operator.

    It joins exactly the generation that was launched, also when it alone is retried or cleared; it never launches one.
    It has succeeded when nothing is left for it to do; whether the job has is judged by the task that collects.

    Args:
        launch: Which job, and which replica of it: an item of the XCom of ``LLMEnginePlanOperator``.
        plan_task_id: The task that launched the job, for messages.
        kwargs: The arguments of ``BatchTaskMixin``.
    """

    template_fields: Sequence[str] = (*WorkerTaskMixin.template_fields, "launch")

    def __init__(self, *, launch: Mapping[str, Any] | XComArg, plan_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.launch = launch
        self.plan_task_id = plan_task_id

    def execute(self, context: Context) -> None:
        """Run the replica's worker to its end.

        Raises:
            LLMEngineError: Something is left to do; see ``airflow_llmengine.exceptions``.
        """
        with _told_to_collect(context):
            self._run(context)

    def trigger_reentry(self, context: Context, event: dict[str, Any], attempt: Mapping[str, Any] | None = None) -> Any:
        """Go on when the trigger has fired; see ``WorkerPodMixin``."""
        with _told_to_collect(context):
            return super().trigger_reentry(context, event, attempt)

    def _run(self, context: Context) -> None:
        from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
        from airflow_llmengine.operators.staging import told_table

        hook = LLMEngineHook(self.llmengine_conn_id)
        options = self._options()
        self._prepare(hook)
        launch = cast("ReplicaLaunch", self.launch)
        handle = handle_of(launch)
        self._end_leftovers(handle.path, launch["replica"], launch["series"])
        if hook.read_manifest(handle) is not None:
            self._leave(context, launch["replica"])
            return
        request = joined_request(hook, self._checked_request(hook), handle, self.plan_task_id)
        status = hook.get(handle.path)
        try:
            refuse_superseded(status, handle, self.plan_task_id)
            refuse_ended(status, self.plan_task_id)
        except JobFailedError:
            # A pod that waits for a node does not end at the deadline.
            self._tidy_pods(context)
            raise
        if is_late(status) and is_complete(status):
            self._leave(context, launch["replica"])
            return
        self._model = decode_model(launch.get("model"))
        attempt = WorkerAttempt(
            handle=handle,
            owner=launch["owner"],
            series=launch["series"],
            # A later series that joined the same generation has put its own deadline there.
            deadline=launch["deadline"] if status.job is None else status.job.deadline,
            max_error_rate=options.max_error_rate,
            engine_args=options.engine_args,
            table=told_table(hook.storage(), handle, options.table),
            cache_path=options.cache_path,
            replica=launch["replica"],
            replicas=launch["replicas"],
            launched_by=self.plan_task_id,
        )
        self._conclude(context, hook, attempt, self._run_worker(context, hook, attempt, request))

    def _leave(self, context: Context, replica: int) -> None:
        self.log.info("The job is done already; nothing is left to do for replica %d.", replica)
        self._tidy_pods(context)
        self._refuse_if_ended()

    def _conclude(self, context: Context, hook: LLMEngineHook, attempt: WorkerAttempt, end: WorkerEnd) -> None:
        self._refuse_if_ended()
        # The worker's word is that its share is done; that the job is, is for collect to prove.
        if not end.done:
            raise end.failure(
                attempt, hook.get(attempt.handle.path), series=attempt.series, launched_by=attempt.launched_by
            )


@contextmanager
def _told_to_collect(context: Context) -> Iterator[None]:
    """The task that collects tells why this one failed."""
    try:
        yield
    except LLMEngineError as error:
        context["ti"].xcom_push(FAILURE_KEY, str(error))
        raise


class LLMEngineReplicaOperator(LLMEngineReplicaMixin, KubernetesPodOperator):
    """Does one replica's share of a job; see ``LLMEngineReplicaMixin``. It takes all options of the pod operator."""
