"""What every task of a batch completion job has in common: its arguments, their rendering, and an end by Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_llmengine.exceptions import KEPT, RequestRefusedError, TaskKilledError
from airflow_llmengine.hooks.llmengine import LLMEngineHook, read_table
from airflow_llmengine.operators.attempt_options import TaskOptions, parse_cache_path
from airflow_llmengine.operators.mapping import VerbatimPartial, gather
from airflow_llmengine.operators.request_arguments import (
    Copies,
    GatheredRequest,
    has_template,
    placeholders,
    protect,
    refuse_early,
    refuse_misspelt,
    unwrap,
)
from airflow_llmengine.operators.table_argument import protect_table, rendered_table

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context, XComArg

    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request


class BatchTaskMixin(BaseOperator):
    """A task that is given a request; it may stand in front of a pod operator.

    The request is given either as ``request``, or as the arguments named like the contract's fields. Every leaf of it
    is a template, except under ``content`` and ``model_config.chat_template``, which are passed letter for letter.
    It is checked when the DAG is parsed, as far as it is known then, and always again when the task runs.

    Args:
        request: The request as one dictionary.
        llmengine_conn_id: Connection of type ``llmengine``: where the job runs, and how storage is reached. It is read
            when the task runs.
        if_done: If the output of this very job stands already: ``reuse``, answer from it, after a clear too; or
            ``regenerate``, make it anew, once for each run or clear.
        overwrite: Replace an output that something else, or another task, wrote.
        max_error_rate: Failed records, as a share of all, from 0 to 1, above which the task fails. By default it fails
            only when every record failed.
        engine_args: Further arguments of vLLM by their Python names, beside those that the contract has a field for; an
            object of JSON values, or its JSON text. They are no secrets: they are on the worker's command line.
        cache_path: A folder in which answers are kept for later runs, and looked for before an engine is loaded; by
            default none. Reached like the other paths.
        table: The input is a table, and so is the output: how rows become records, and results columns. An object, or
            its JSON text. ``prompt`` and ``messages`` in it are Jinja over the columns of a row, and no templates of
            Airflow's; nor is ``output_schema``, which may be a pydantic model. Like ``engine_args`` no place for
            secrets.
        input_data_path: As the contract has it, like all that follow.
        output_data_path: Where the result stands when the task has succeeded, and never before.
        content: Prompts and sampling parameters in the DAG itself. Up to 64 KiB go along with the request, more is
            staged beside the output. Never shown; but not so in ``default_args``, which Airflow writes into the
            serialized DAG as they are.
        model_config: The model and how to load it.
        labels: On every Kubernetes object of the job.
        data_parallelism: How many replicas share the records.
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
        kwargs: What the pod operator and BaseOperator take; it goes before what the connection says. A job that runs
            in a local process only uses ``termination_grace_period`` of the pod's options: the seconds it has to save
            its work when it is ended.

    Raises:
        RequestRefusedError: The request can't be run; when the DAG is parsed.
    """

    _request_is_whole: ClassVar[bool] = True
    """Whether nothing comes to the request when the task runs."""

    template_fields: Sequence[str] = (
        "request",
        "llmengine_conn_id",
        "if_done",
        "overwrite",
        "max_error_rate",
        "engine_args",
        "cache_path",
        "table",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"request": "json", "engine_args": "json", "table": "json"}
    # Paths end in .json: they are never the names of template files.
    template_ext: Sequence[str] = ()
    ui_color = "#e8f0e4"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add the pod operator's template fields to this class's own."""
        super().__init_subclass__(**kwargs)
        own: type[BaseOperator] = cls.__mro__[1]
        pod: type[BaseOperator] = cls.__mro__[cls.__mro__.index(BatchTaskMixin) + 1]
        if "template_fields" not in cls.__dict__:
            cls.template_fields = tuple(dict.fromkeys((*own.template_fields, *pod.template_fields)))
        if "template_fields_renderers" not in cls.__dict__:
            cls.template_fields_renderers = {**pod.template_fields_renderers, **own.template_fields_renderers}

    @classmethod
    def partial(cls, **kwargs: Any) -> VerbatimPartial:
        """Begin a dynamic task mapping: the arguments that all mapped tasks share."""
        refuse_misspelt(cls, kwargs)
        return VerbatimPartial.of(super().partial(**gather(kwargs)))

    def __init__(
        self,
        *,
        request: Mapping[str, Any] | XComArg | None = None,
        llmengine_conn_id: str = LLMEngineHook.default_conn_name,
        if_done: str = "reuse",
        overwrite: bool | str = False,
        max_error_rate: float | str | None = None,
        engine_args: Mapping[str, Any] | str | XComArg | None = None,
        cache_path: str | XComArg | None = None,
        table: Mapping[str, Any] | str | XComArg | None = None,
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
        refuse_misspelt(type(self), kwargs)
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
        self._copies = Copies()
        self.request = _assemble(request, given, kwargs.get("default_args") or {}, self._copies)
        self.llmengine_conn_id = llmengine_conn_id
        self.if_done = if_done
        self.overwrite = overwrite
        self.max_error_rate = max_error_rate
        self.engine_args = engine_args
        self.cache_path = cache_path
        self.table = protect_table(table)
        if isinstance(self.table, Mapping):
            self._copies.note(self.table, table)
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
        if seen_oids and self._copies.is_of_one(content, seen_oids):
            return content
        rendered = super().render_template(content, context, jinja_env, seen_oids)
        if content is self.table:
            return rendered_table(rendered, content)
        # What an XCom brought holds the user's text, too.
        return protect(rendered) if content is self.request and isinstance(rendered, Mapping) else rendered

    def on_kill(self) -> None:
        """Note that Airflow ends the task. Called in a signal handler, in the middle of ``execute``."""
        self._ended_by_airflow = True
        super().on_kill()

    def _refuse_early(self) -> None:
        if isinstance(self.request, Mapping):
            refuse_early(self.request, self.table, is_whole=self._request_is_whole)
        elif self.table is not None:
            refuse_early({}, self.table, is_whole=False)
        # A stand-in for what is only known later.
        TaskOptions.parse(
            if_done="reuse" if has_template(self.if_done) else self.if_done,
            overwrite=False if has_template(self.overwrite) else self.overwrite,
            max_error_rate=None if has_template(self.max_error_rate) else self.max_error_rate,
            engine_args=None if has_template(self.engine_args) else placeholders(self.engine_args),
            cache_path=None if has_template(self.cache_path) else self.cache_path,
            # Told of with the request.
            table=None,
        )

    def _options(self) -> TaskOptions:
        return TaskOptions.parse(
            if_done=self.if_done,
            overwrite=self.overwrite,
            max_error_rate=self.max_error_rate,
            engine_args=self.engine_args,
            cache_path=self.cache_path,
            table=unwrap(self.table),
        )

    def _checked_request(self, hook: LLMEngineHook) -> CreateBatchCompletionsV1Request:
        request = unwrap(self.request)
        if not isinstance(request, Mapping):
            raise RequestRefusedError(f"The request must be an object, and is a {type(request).__name__}.")
        from airflow_llmengine.spec.replica_nodes import nodes_of

        checked = hook.validate(request, read_table(unwrap(self.table)))
        parse_cache_path(self.cache_path, checked)
        if hook.settings.launcher == "local" and nodes_of(checked) > 1:
            raise RequestRefusedError(
                f"nodes_per_worker: {checked.nodes_per_worker} nodes need pods, and the connection "
                f"{self.llmengine_conn_id} runs workers as processes of one machine (launcher: local). Leave it out."
            )
        return checked

    def _refuse_if_ended(self) -> None:
        """Airflow takes a return for a success, also when it had the task killed."""
        if self._ended_by_airflow:
            raise TaskKilledError(f"Airflow ended the task. {KEPT}; a retry, or clearing the task, goes on from there.")


def _assemble(
    request: Mapping[str, Any] | XComArg | None,
    fields: Mapping[str, Any],
    default_args: Mapping[str, Any],
    copies: Copies,
) -> Any:
    """The one request out of both ways to give it; notes which parts of it are copies of what.

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
        return request
    given = {**defaults, **(request or {}), **explicit}
    protected = protect(given)
    copies.note(protected, request)
    if protected.get("model_config") is not given.get("model_config"):
        copies.note(protected["model_config"], given["model_config"])
    return protected
