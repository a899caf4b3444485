"""What a task tells Airflow of a job that has its result: the summary, asset events, and lineage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llmengine.hooks.asset_events import fill_asset_events
from airflow_llmengine.hooks.job_summary import accepted_summary
from airflow_llmengine.operators.request_arguments import unwrap
from airflow_llmengine.operators.worker_task import WorkerTaskMixin

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmengine.spec.manifest import Manifest


class JobResultMixin(WorkerTaskMixin):
    """A task that succeeds when its job's output stands.

    The methods for OpenLineage are called by its provider, if that is installed, and by nobody else.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._manifest: Manifest | None = None

    def _succeed(self, context: Context, manifest: Manifest, max_error_rate: float | None) -> dict[str, Any]:
        """The task's result.

        Raises:
            TooManyFailedRecordsError: More records failed than the task bears.
            TaskKilledError: Airflow ended the task.
        """
        self._refuse_if_ended()
        self._manifest = manifest
        summary = accepted_summary(manifest, max_error_rate)
        fill_asset_events(context, self.outlets, manifest)
        return summary

    def get_openlineage_facets_on_start(self) -> Any:
        """The job's datasets, and how the model is loaded."""
        return self._lineage()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The same, with what the job's manifest says."""
        return self._lineage()

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """The same; the manifest is there if the task failed for its output's sake, as by ``max_error_rate``."""
        return self._lineage()

    def _lineage(self) -> Any:
        from airflow_llmengine.hooks.openlineage_facets import job_lineage

        return job_lineage(
            unwrap(self.request),
            engine_args=self.engine_args,
            table=unwrap(self.table),
            manifest=self._manifest,
        )
