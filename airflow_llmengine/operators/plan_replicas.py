"""The first task of a job of several replicas: it launches the job, and says which replicas there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.operators.batch_task import BatchTaskMixin
from airflow_llmengine.operators.launching import launch, series_of
from airflow_llmengine.operators.replica_launch import JOB_KEY, LAUNCH_KEY, GroupLaunch, ReplicaLaunch
from airflow_llmengine.operators.worker_hardware import encode_model

if TYPE_CHECKING:
    from airflow.sdk import Context


class LLMEnginePlanOperator(BatchTaskMixin):
    """Launches a job for ``data_parallelism`` replicas. Runs no worker.

    Its XCom is what the mapped tasks are expanded over: a small object for each replica. So it is when the output of
    this very job stands already, too: Airflow would mark the tasks of an earlier attempt as removed, and not bring them
    back when a later one needs them.

    Args:
        group: Whom the output belongs to, within the DAG.
        kwargs: The arguments of ``BatchTaskMixin``.
    """

    def __init__(self, *, group: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._group = group

    def execute(self, context: Context) -> list[ReplicaLaunch]:
        """Launch the job, or find that it is done.

        Raises:
            LLMEngineError: It can't be launched; see ``airflow_llmengine.exceptions``.
        """
        hook = LLMEngineHook(self.llmengine_conn_id)
        options = self._options()
        request = self._checked_request(hook)
        ti = context["ti"]
        owner, series = f"{ti.dag_id}/{self._group}", series_of(ti)
        launched, request, model = launch(hook, request, owner=owner, series=series, options=options, log=self.log)
        self._refuse_if_ended()
        whole = GroupLaunch(
            job=launched.handle.model_dump(mode="json"),
            owner=owner,
            series=series,
            deadline=launched.deadline,
            replicas=request.data_parallelism or 1,
            model=encode_model(model),
        )
        ti.xcom_push(LAUNCH_KEY, dict(whole))
        ti.xcom_push(JOB_KEY, whole["job"])
        self.log.info("%d replicas share the records.", whole["replicas"])
        return [ReplicaLaunch(**whole, replica=replica) for replica in range(whole["replicas"])]
