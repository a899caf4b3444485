"""The operator: one batch completion job as one task."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf

from airflow_llmengine.exceptions import KEPT, RequestRefusedError, TaskKilledError
from airflow_llmengine.hooks.job_failure import job_failure
from airflow_llmengine.hooks.job_summary import accepted_summary
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.operators.attempt_options import TaskOptions
from airflow_llmengine.operators.mapping import VerbatimPartial, gather
from airflow_llmengine.operators.request_arguments import (
    GatheredRequest,
    has_template,
    protect,
    refuse_early,
    unwrap,
)

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context, XComArg

    from airflow_llmengine.hooks.local_launch import LocalLauncher
    from airflow_llmengine.spec.manifest import Manifest
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.storage.launch import Launch

POD_FIELDS = ("cpus", "memory", "storage", "gpus", "gpu_type", "nodes_per_worker", "priority")
"""Fields of a request that say what a pod gets. A process on this machine has what the machine has."""


class LLMEngineBatchCompletionsMixin(BaseOperator):
    """Runs a batch completion job, in front of a pod operator.

    To run with another pod operator than KubernetesPodOperator, put this in front of it::

        class EksBatchCompletionsOperator(LLMEngineBatchCompletionsMixin, EksPodOperator): ...

    The request is given either as ``request``, or as the arguments named like the contract's fields. Every leaf of it
    is a template, except under ``content`` and ``model_config.chat_template``, which are passed letter for letter.
    It is checked when the DAG is parsed, as far as it is known then, and always again when the task runs.

    The task succeeds when a valid manifest of this very job stands beside the output, and never otherwise. Its XCom is
    ``output_data_path``, ``manifest_path``, ``records``, ``succeeded``, ``failed``, ``failures`` (by type),
    ``prompt_tokens``, ``completion_tokens``, ``model`` and ``job`` (the job handle), each also under its own key, so
    that ``task.output["output_data_path"]`` is the path. It never holds data.

    Args:
        request: The request as one dictionary.
        llmengine_conn_id: Connection of type ``llmengine``: where the job runs, and how storage is reached. It is read
            when the task runs.
        if_done: If the output of this very job stands already: ``reuse``, answer from it, after a clear too; or
            ``regenerate``, make it anew, once for each run or clear.
        overwrite: Replace an output that something else, or another task, wrote.
        max_error_rate: Failed records, as a share of all, from 0 to 1, above which the task fails. By default it fails
            only when every record failed.
        input_data_path: As the contract has it, like all that follow.
        output_data_path: Where the result stands when the task has succeeded, and never before.
        content: Prompts and sampling parameters in the DAG itself. Up to 64 KiB go along with the request, more is
            staged beside the output. Never shown; but not so in ``default_args``, which Airflow writes into the
            serialized DAG as they are.
        model_config: The model and how to load it.
        labels: On every Kubernetes object of the job.
        data_parallelism: How many replicas share the records. This operator is one.
        max_runtime_sec: One budget for all attempts of a run; a clear begins a new one.
        priority: The PriorityClass of the pods.
        tool_config: What tools the model may use.
        cpus: Of each worker, like all that follow; for pods.
        memory: See ``cpus``.
        gpus: See ``cpus``.
        gpu_type: See ``cpus``.
        storage: See ``cpus``.
        nodes_per_worker: See ``cpus``.
        do_xcom_push: Whether the result is pushed.
        multiple_outputs: Whether each field of the result is pushed under its own key, too.
        kwargs: What the pod operator and BaseOperator take. A job that runs in a local process only uses
            ``termination_grace_period`` of the pod's options: the seconds it has to save its work when it is ended.

    Raises:
        RequestRefusedError: The request can't be run; when the DAG is parsed.
    """

    template_fields: Sequence[str] = ("request", "llmengine_conn_id", "if_done", "overwrite", "max_error_rate")
    template_fields_renderers: ClassVar[dict[str, str]] = {"request": "json"}
    # Paths end in .json: they are never the names of template files.
    template_ext: Sequence[str] = ()
    ui_color = "#e8f0e4"

    termination_grace_period: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add the pod operator's template fields to this class's own."""
        super().__init_subclass__(**kwargs)
        own = LLMEngineBatchCompletionsMixin
        pod: type[BaseOperator] = cls.__mro__[cls.__mro__.index(own) + 1]
        if "template_fields" not in cls.__dict__:
            cls.template_fields = tuple(dict.fromkeys((*own.template_fields, *pod.template_fields)))
        if "template_fields_renderers" not in cls.__dict__:
            cls.template_fields_renderers = {**pod.template_fields_renderers, **own.template_fields_renderers}

    @classmethod
    def partial(cls, **kwargs: Any) -> VerbatimPartial:
        """Begin a dynamic task mapping: the arguments that all mapped tasks share."""
        return VerbatimPartial.of(super().partial(**gather(kwargs)))

    def __init__(
        self,
        *,
        request: Mapping[str, Any] | XComArg | None = None,
        llmengine_conn_id: str = LLMEngineHook.default_conn_name,
        if_done: str = "reuse",
        overwrite: bool | str = False,
        max_error_rate: float | str | None = None,
        input_data_path: str | XComArg | None = None,
        output_data_path: str | XComArg | None = None,
        content: Mapping[str, Any] | XComArg | None = None,
        model_config: Mapping[str, Any] | XComArg | None = None,
        labels: Mapping[str, str] | XComArg | None = None,
        data_parallelism: int | str | XComArg | None = None,
        max_runtime_sec: int | str | XComArg | None = None,
        priority: str | XComArg | None = None,
        tool_config: Mapping[str, Any] | XComArg | None = None,
        cpus: str | float | XComArg | None = None,
        memory: str | float | XComArg | None = None,
        gpus: int | str | XComArg | None = None,
        gpu_type: str | XComArg | None = None,
        storage: str | float | XComArg | None = None,
        nodes_per_worker: int | str | XComArg | None = None,
        do_xcom_push: bool = True,
        multiple_outputs: bool = True,
        **kwargs: Any,
    ) -> None:
        # The pod operator means by do_xcom_push a container beside the worker's, which is not used.
        super().__init__(do_xcom_push=False, multiple_outputs=multiple_outputs, **kwargs)
        self.do_xcom_push = do_xcom_push
        fields = {
            "input_data_path": input_data_path,
            "output_data_path": output_data_path,
            "content": content,
            "model_config": model_config,
            "labels": labels,
            "data_parallelism": data_parallelism,
            "max_runtime_sec": max_runtime_sec,
            "priority": priority,
            "tool_config": tool_config,
            "cpus": cpus,
            "memory": memory,
            "gpus": gpus,
            "gpu_type": gpu_type,
            "storage": storage,
            "nodes_per_worker": nodes_per_worker,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        self.request, self._originals = _assemble(request, given, kwargs.get("default_args") or {})
        self.llmengine_conn_id = llmengine_conn_id
        self.if_done = if_done
        self.overwrite = overwrite
        self.max_error_rate = max_error_rate
        self._launcher: LocalLauncher | None = None
        self._ended_by_airflow = False
        self._refuse_early()

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render a template, or what holds templates; as Airflow does, but for the user's text."""
        # What a mapped task gets from an XCom is data and not a template, and this is a copy of it.
        if seen_oids and any(copy is content and id(original) in seen_oids for copy, original in self._originals):
            return content
        rendered = super().render_template(content, context, jinja_env, seen_oids)
        # A request that an XCom brought holds the user's text, too.
        return protect(rendered) if content is self.request and isinstance(rendered, Mapping) else rendered

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job, or find that it is done, and give its summary.

        Raises:
            LLMEngineError: The job did not succeed; see ``airflow_llmengine.exceptions``.
        """
        from airflow_llmengine.operators.staging import staged_content

        hook = LLMEngineHook(self.llmengine_conn_id)
        options = TaskOptions.parse(if_done=self.if_done, overwrite=self.overwrite, max_error_rate=self.max_error_rate)
        launcher = self._make_launcher(hook)
        request = self._checked_request(hook)
        ti = context["ti"]
        owner = f"{ti.dag_id}/{ti.task_id}"
        # max_tries grows when the task is cleared, and stays when it is retried.
        series = "/".join(map(str, (ti.dag_id, ti.run_id, ti.task_id, ti.map_index, ti.max_tries)))
        launcher.end_leftovers(hook.output_url(request), series)
        limit = conf.getint("llmengine", "max_inline_content_bytes")
        with staged_content(hook.storage(), request, limit) as request:
            launch = hook.create(
                request, owner=owner, series=series, if_done=options.if_done, overwrite=options.overwrite
            )
        if launch.manifest is None:
            self._tell_launch(launch, request)
            return self._run(hook, launcher, launch, request, owner, series, options.max_error_rate)
        self._tell_answer(launch.manifest)
        return self._succeed(launch.manifest, options.max_error_rate)

    def on_kill(self) -> None:
        """Stop the worker, when Airflow ends the task. Called in a signal handler, in the middle of ``execute``."""
        self._ended_by_airflow = True
        if self._launcher is not None:
            self._launcher.stop()
        super().on_kill()

    def _refuse_early(self) -> None:
        if isinstance(self.request, Mapping):
            refuse_early(self.request)
            _refuse_replicas(self.request.get("data_parallelism"))
        # A stand-in for what is only known later.
        TaskOptions.parse(
            if_done="reuse" if has_template(self.if_done) else self.if_done,
            overwrite=False if has_template(self.overwrite) else self.overwrite,
            max_error_rate=None if has_template(self.max_error_rate) else self.max_error_rate,
        )

    def _checked_request(self, hook: LLMEngineHook) -> CreateBatchCompletionsV1Request:
        request = unwrap(self.request)
        if not isinstance(request, Mapping):
            raise RequestRefusedError(f"The request must be an object, and is a {type(request).__name__}.")
        checked = hook.validate(request)
        _refuse_replicas(checked.data_parallelism)
        return checked

    def _make_launcher(self, hook: LLMEngineHook) -> LocalLauncher:
        from airflow_llmengine.hooks.local_launch import LocalLauncher

        self._launcher = launcher = LocalLauncher(
            hook.settings,
            grace_seconds=self.termination_grace_period or conf.getint("llmengine", "grace_seconds"),
            runtime_directory=conf.get("llmengine", "runtime_directory"),
            log=self.log.log,
        )
        # on_kill could not reach it until now.
        if self._ended_by_airflow:
            launcher.stop()
        return launcher

    def _run(
        self,
        hook: LLMEngineHook,
        launcher: LocalLauncher,
        launch: Launch,
        request: CreateBatchCompletionsV1Request,
        owner: str,
        series: str,
        max_error_rate: float | None,
    ) -> dict[str, Any]:
        """Run the worker, and judge by what stands on storage, not by what the worker says."""
        from airflow_llmengine.hooks.local_launch import LocalAttempt
        from airflow_llmengine.operators.staging import encode_request

        outcome = launcher.run(
            LocalAttempt(
                output=launch.handle.path,
                owner=owner,
                series=series,
                request=encode_request(request),
                storage_options=hook.storage_options,
                deadline=launch.deadline,
                max_error_rate=max_error_rate,
            )
        )
        manifest = hook.read_manifest(launch.handle)
        if manifest is not None:
            return self._succeed(manifest, max_error_rate)
        self._refuse_if_ended()
        raise job_failure(
            outcome.exit_code,
            outcome.last_error,
            handle=launch.handle,
            deadline=launch.deadline,
            status=hook.get(launch.handle.path),
        )

    def _tell_launch(self, launch: Launch, request: CreateBatchCompletionsV1Request) -> None:
        self.log.info(
            "%s job %s, generation %d, of %s; it must be done by %s.",
            "Resuming" if launch.resumed else "Starting",
            launch.handle.fingerprint,
            launch.handle.generation,
            launch.handle.path,
            _when(launch.deadline),
        )
        for_pods = [name for name in POD_FIELDS if request.is_given(name)]
        if for_pods:
            self.log.info("%s: for pods; a local worker has what this machine has.", ", ".join(for_pods))

    def _tell_answer(self, manifest: Manifest) -> None:
        self.log.info(
            "Answered from storage: %s stands already, of this very job, since %s: %d records, %d of them failed. "
            "To make it anew, set if_done='regenerate' and clear the task.",
            manifest.output_data_path,
            _when(manifest.finished),
            manifest.records,
            manifest.failed,
        )

    def _succeed(self, manifest: Manifest, max_error_rate: float | None) -> dict[str, Any]:
        self._refuse_if_ended()
        return accepted_summary(manifest, max_error_rate)

    def _refuse_if_ended(self) -> None:
        """Airflow takes a return for a success, also when it had the task killed."""
        if self._ended_by_airflow:
            raise TaskKilledError(f"Airflow ended the task. {KEPT}; a retry, or clearing the task, goes on from there.")


class LLMEngineBatchCompletionsOperator(LLMEngineBatchCompletionsMixin, KubernetesPodOperator):
    """Runs a batch completion job as one task; see ``LLMEngineBatchCompletionsMixin`` for its arguments.

    It is a KubernetesPodOperator and takes all of its options. Where the job really runs is the connection's business.
    """


def _assemble(
    request: Mapping[str, Any] | XComArg | None, fields: Mapping[str, Any], default_args: Mapping[str, Any]
) -> tuple[Any, list[tuple[Any, Any]]]:
    """The one request out of both ways to give it, and which parts of it are copies of what.

    Airflow has filled the arguments that were not given from ``default_args`` already; what was given goes before it,
    also when it was given as a part of ``request``, or to ``partial()``.
    """
    defaults = {name: value for name, value in fields.items() if default_args.get(name) is value}
    explicit = {name: value for name, value in fields.items() if name not in defaults}
    if request is not None and explicit and not isinstance(request, GatheredRequest):
        raise RequestRefusedError(
            f"request and {', '.join(explicit)} were both given: give the request as one dictionary, or its fields."
        )
    if request is not None and not isinstance(request, Mapping):
        if defaults:
            raise RequestRefusedError(
                f"default_args gives {', '.join(defaults)}, and the request comes whole from another task: give the "
                "fields one by one, or take them out of default_args."
            )
        return request, []
    given = {**defaults, **(request or {}), **explicit}
    protected = protect(given)
    copies = [(protected, request)]
    if protected.get("model_config") is not given.get("model_config"):
        copies.append((protected["model_config"], given["model_config"]))
    return protected, copies


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))


def _refuse_replicas(data_parallelism: Any) -> None:
    if data_parallelism is not None and not has_template(data_parallelism) and str(data_parallelism) != "1":
        raise RequestRefusedError(
            f"data_parallelism: {data_parallelism} replicas can't be run by one task in this version; leave it out."
        )
