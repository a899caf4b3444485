"""The operator: one batch completion job as one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

from airflow_llmengine.exceptions import LaunchForbiddenError, RequestRefusedError
from airflow_llmengine.hooks.job_summary import launched_summary
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.operators.job_result import JobResultMixin
from airflow_llmengine.operators.launching import launch, series_of
from airflow_llmengine.operators.request_arguments import (
    REQUEST_FIELDS,
    has_template,
    pool_slots,
    protect,
    refuse_early,
)
from airflow_llmengine.operators.table_argument import protect_table

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
    from airflow_llmengine.operators.attempt_options import TaskOptions
    from airflow_llmengine.operators.mapping import VerbatimPartial
    from airflow_llmengine.operators.worker_pod import WorkerEnd
    from airflow_llmengine.spec.hardware.inference import Model
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.storage.launch import Launch


class LLMEngineBatchCompletionsMixin(JobResultMixin):
    """Runs a batch completion job, in front of a pod operator.

    To run with another pod operator than KubernetesPodOperator, put this in front of it, as
    ``LLMEngineEksBatchCompletionsOperator`` does::

        class GkeBatchCompletionsOperator(LLMEngineBatchCompletionsMixin, GKEStartPodOperator): ...

    The task succeeds when a valid manifest of this very job stands beside the output, and never otherwise. Its XCom is
    ``output_data_path``, ``manifest_path``, ``records``, ``succeeded``, ``truncated``, ``skipped``, ``failed``,
    ``failures`` (by type), ``repeated``, ``cached``, ``prompt_tokens``, ``completion_tokens``, ``model`` and ``job``
    (the job handle), each also under its own key, so that ``task.output["output_data_path"]`` is the path. It never
    holds data.

    It is one replica: for ``data_parallelism`` there is ``LLMEngineBatchCompletionsTaskGroup``.

    Args:
        wait_for_completion: Whether the task waits for the job. If not, it ends as soon as the pod is made, and its
            XCom is ``output_data_path``, ``manifest_path`` and ``job``: a sensor that is given that waits for the job,
            and deletes the pod. Only with the launcher ``kubernetes``.
        kwargs: The arguments of ``BatchTaskMixin``. In a ``pool`` the task takes as many slots as it has ``gpus``, if
            that is a number in the DAG, unless ``pool_slots`` says otherwise.
    """

    @classmethod
    def partial(cls, **kwargs: Any) -> VerbatimPartial:
        """Begin a dynamic task mapping: the arguments that all mapped tasks share.

        Raises:
            RequestRefusedError: With these the request can't be run, whatever is mapped over.
        """
        refuse_shared_early(kwargs)
        return super().partial(**{**pool_slots(kwargs, kwargs), **kwargs})

    def __init__(self, *, wait_for_completion: bool = True, **kwargs: Any) -> None:
        super().__init__(**{**pool_slots(kwargs, kwargs), **kwargs})
        self.wait_for_completion = wait_for_completion
        if not wait_for_completion and self.outlets:
            raise RequestRefusedError(
                "outlets don't go with wait_for_completion=False: this task succeeds before there is an output. Give "
                "them to the sensor that waits for the job."
            )

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Run the job, or find that it is done, and give its summary.

        Raises:
            LLMEngineError: The job did not succeed; see ``airflow_llmengine.exceptions``.
        """
        from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
        from airflow_llmengine.operators.staging import told_table

        hook = LLMEngineHook(self.llmengine_conn_id)
        options = self._options()
        self._prepare(hook)
        request = self._checked_request(hook)
        ti = context["ti"]
        owner, series = f"{ti.dag_id}/{ti.task_id}", series_of(ti)
        self._end_leftovers(hook.output_url(request), 0, series)
        try:
            launched, request, self._model = self._launch(hook, request, owner=owner, series=series, options=options)
        except (LaunchForbiddenError, RequestRefusedError):
            # A pod that waits for a node does not end at the deadline.
            self._tidy_pods(context)
            raise
        if launched.manifest is not None:
            self._tidy_pods(context)
            return self._succeed(context, launched.manifest, options.max_error_rate)
        attempt = WorkerAttempt(
            handle=launched.handle,
            owner=owner,
            series=series,
            deadline=launched.deadline,
            max_error_rate=options.max_error_rate,
            engine_args=options.engine_args,
            table=told_table(hook.storage(), launched.handle, options.table),
            cache_path=options.cache_path,
        )
        if not self.wait_for_completion:
            self._start_pod(context, hook, attempt, request)
            self._refuse_if_ended()
            return launched_summary(attempt.handle)
        return self._conclude(context, hook, attempt, self._run_worker(context, hook, attempt, request))

    def _launch(
        self,
        hook: LLMEngineHook,
        request: CreateBatchCompletionsV1Request,
        *,
        owner: str,
        series: str,
        options: TaskOptions,
    ) -> tuple[Launch, CreateBatchCompletionsV1Request, Model | None]:
        return launch(hook, request, owner=owner, series=series, options=options, log=self.log)

    def _conclude(
        self, context: Context, hook: LLMEngineHook, attempt: WorkerAttempt, end: WorkerEnd
    ) -> dict[str, Any]:
        # What stands on storage counts, not what the worker says.
        manifest = hook.read_manifest(attempt.handle)
        if manifest is not None:
            return self._succeed(context, manifest, attempt.max_error_rate)
        self._refuse_if_ended()
        raise end.failure(
            attempt, hook.get(attempt.handle.path), series=attempt.series, launched_by=attempt.launched_by
        )

    def _refuse_without_pods(self) -> None:
        if not self.wait_for_completion:
            raise RequestRefusedError(
                "wait_for_completion=False goes with the launcher kubernetes only: a local worker ends with its task. "
                "Leave it out."
            )

    def _refuse_early(self) -> None:
        super()._refuse_early()
        if isinstance(self.request, Mapping):
            _refuse_replicas(self.request.get("data_parallelism"))

    def _checked_request(self, hook: LLMEngineHook) -> CreateBatchCompletionsV1Request:
        checked = super()._checked_request(hook)
        _refuse_replicas(checked.data_parallelism)
        return checked


class LLMEngineBatchCompletionsOperator(LLMEngineBatchCompletionsMixin, KubernetesPodOperator):
    """Runs a batch completion job as one task; see ``LLMEngineBatchCompletionsMixin`` for its arguments.

    It is a KubernetesPodOperator and takes all of its options. Where the job really runs is the connection's business.
    """


def refuse_shared_early(arguments: Mapping[str, Any]) -> None:
    """Check the arguments that mapped tasks share when the DAG is parsed: no task is made by then that would do it.

    Args:
        arguments: Those of ``partial()``, or of a decorator.

    Raises:
        RequestRefusedError: With these the request can't be run, whatever is mapped over.
    """
    whole = arguments.get("request")
    fields = whole if isinstance(whole, Mapping) else {name: arguments.get(name) for name in REQUEST_FIELDS}
    given = {name: value for name, value in fields.items() if value is not None}
    refuse_early(protect(given), protect_table(arguments.get("table")), is_whole=False)
    _refuse_replicas(given.get("data_parallelism"))


def _refuse_replicas(data_parallelism: Any) -> None:
    if data_parallelism is not None and not has_template(data_parallelism) and str(data_parallelism) != "1":
        raise RequestRefusedError(
            f"data_parallelism: {data_parallelism} replicas are more than one task: use "
            "LLMEngineBatchCompletionsTaskGroup instead, or leave it out."
        )
