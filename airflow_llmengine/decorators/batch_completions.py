"""``@task.llmengine_batch``: a batch completion job whose input a function gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import attrs
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, _TaskDecorator

from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator, refuse_shared_early
from airflow_llmengine.operators.mapping import gather
from airflow_llmengine.operators.request_arguments import (
    REQUEST_FIELDS,
    GatheredRequest,
    pool_slots,
    protect,
    refuse_misspelt,
    unwrap,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmengine.hooks.llmengine import LLMEngineHook
    from airflow_llmengine.operators.attempt_options import TaskOptions
    from airflow_llmengine.spec.hardware.inference import Model
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.storage.launch import Launch


class LLMEngineBatchCompletionsDecoratedOperator(DecoratedOperator, LLMEngineBatchCompletionsOperator):
    """Calls a function, and runs a batch completion job on what it returns.

    Args:
        python_callable: The function; see ``llmengine_batch_task``.
        kwargs: The arguments of ``LLMEngineBatchCompletionsOperator``, and what a decorated task has.
    """

    # The function may give any field.
    _request_is_whole: ClassVar[bool] = False

    custom_operator_name = "@task.llmengine_batch"
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *LLMEngineBatchCompletionsOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **LLMEngineBatchCompletionsOperator.template_fields_renderers,
    }
    # So that the request is shown as it was run.
    overwrite_rtif_after_execution = True

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(python_callable=python_callable, **kwargs)
        self._rows: bytes | None = None
        if self.is_async:
            raise RequestRefusedError(
                f"{python_callable.__name__} is asynchronous, which {self.custom_operator_name} does not call: let it "
                "be an ordinary function."
            )

    def execute(self, context: Context) -> Any:
        """Call the function, and run the job, or find that it is done.

        Raises:
            LLMEngineError: What the function returned is no input, or the job did not succeed.
        """
        from airflow_llmengine.decorators.returned_input import read_returned
        from airflow_llmengine.hooks.llmengine import LLMEngineHook

        names = {**context, **self.op_kwargs}
        returned = self.python_callable(*self.op_args, **self.determine_kwargs(names))
        hook = LLMEngineHook(self.llmengine_conn_id)
        read = read_returned(
            returned, source=self.python_callable.__name__, storage_conn_id=hook.settings.storage_conn_id
        )
        if isinstance(self.request, Mapping):
            self._rows = read.rows
            fields = {**self.request, **read.fields}
            if read.rows is not None:
                fields["input_data_path"] = self._place_of_rows(hook, fields, read.rows)
            self.request = protect(fields)
        return super().execute(context)

    def defer(self, *, kwargs: dict[str, Any] | None = None, **arguments: Any) -> NoReturn:
        """Defer, and take along where the input is: the function is not called again."""
        from airflow_llmengine.storage.urls import redact

        path = self.request.get("input_data_path") if isinstance(self.request, Mapping) else None
        known = {"input_data_path": redact(path)} if isinstance(path, str) else {}
        super().defer(kwargs={**(kwargs or {}), **known}, **arguments)

    def trigger_reentry(
        self,
        context: Context,
        event: dict[str, Any],
        attempt: Mapping[str, Any] | None = None,
        input_data_path: str | None = None,
    ) -> Any:
        """Go on when the trigger has fired; see ``WorkerPodMixin``. The input's place is only told of."""
        if input_data_path is not None and isinstance(self.request, Mapping):
            self.request = {**self.request, "input_data_path": input_data_path}
        return super().trigger_reentry(context, event, attempt)

    def _place_of_rows(self, hook: LLMEngineHook, request: Mapping[str, Any], rows: bytes) -> str:
        """Where the rows will be: beside the output."""
        from airflow_llmengine.hooks.llmengine import read_table
        from airflow_llmengine.operators.staging import place_of_input

        table = read_table(unwrap(self.table))
        if table is not None and not rows:
            raise RequestRefusedError(
                f"{self.python_callable.__name__} returned no rows, and without any a table has no columns: let it "
                "raise AirflowSkipException where there is nothing to do."
            )
        if table is not None and table.input_format not in (None, "jsonl"):
            raise RequestRefusedError(
                f"table.input_format is {table.input_format}, and {self.python_callable.__name__} returned rows, "
                "which are written as JSON lines: leave it out."
            )
        output = request.get("output_data_path")
        # Of one that is none the request's check tells.
        known = isinstance(output, str) and bool(output.strip())
        return place_of_input(hook.storage(), str(output), rows, ".jsonl").url if known else "rows.jsonl"

    def _launch(
        self,
        hook: LLMEngineHook,
        request: CreateBatchCompletionsV1Request,
        *,
        owner: str,
        series: str,
        options: TaskOptions,
    ) -> tuple[Launch, CreateBatchCompletionsV1Request, Model | None]:
        if self._rows is None:
            return super()._launch(hook, request, owner=owner, series=series, options=options)
        from airflow_llmengine.operators.staging import place_of_input, staged_input

        storage, output = hook.storage(), request.output_data_path
        place = place_of_input(storage, output, self._rows, ".jsonl")
        with staged_input(storage, output, place, self._rows):
            return super()._launch(hook, request, owner=owner, series=series, options=options)


class _BatchTask(_TaskDecorator[Any, Any, LLMEngineBatchCompletionsDecoratedOperator]):
    """A function with its arguments as a task, before it is called or mapped."""

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: Mapping[str, Any], *, multiple_outputs: bool) -> _BatchTask:
        """The task of a function."""
        made = cls(
            function=function,
            multiple_outputs=multiple_outputs,
            operator_class=LLMEngineBatchCompletionsDecoratedOperator,
            kwargs={},
        )
        return made.override(**arguments)

    def override(self, **arguments: Any) -> _BatchTask:
        """The same with other arguments; those that are None are not given."""
        refuse_misspelt(self.operator_class, arguments)
        given = {name: value for name, value in arguments.items() if value is not None or name not in REQUEST_FIELDS}
        given = gather(given)
        fields, before = given.get("request"), self.kwargs.get("request")
        if isinstance(fields, GatheredRequest) and before is not None:
            if not isinstance(before, GatheredRequest):
                raise RequestRefusedError(
                    f"request and {', '.join(fields)} were both given: give the request as one dictionary, or its "
                    "fields."
                )
            given["request"] = GatheredRequest({**before, **fields})
        return cast("_BatchTask", super().override(**given))

    def expand(self, **mapped: Any) -> Any:
        """Map over lists and XComs of the function's arguments."""
        return super(_BatchTask, self._to_map()).expand(**mapped)

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> Any:
        """Map over a list of the function's arguments, or an XCom."""
        return super(_BatchTask, self._to_map()).expand_kwargs(kwargs, strict=strict)

    def _to_map(self) -> _BatchTask:
        # Of a mapped task nothing is made when the DAG is parsed.
        refuse_shared_early(self.kwargs)
        return attrs.evolve(self, kwargs={**pool_slots(self.kwargs, self.kwargs), **self.kwargs})


def llmengine_batch_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool = True, **kwargs: Any
) -> TaskDecorator:
    """Make a function a task that runs a batch completion job; in DAGs it is ``@task.llmengine_batch``.

    The function runs where the task runs, and what it returns is the job's input:

    - a dictionary: fields of the request, which go before those that the decorator is given;
    - rows, a list of dictionaries or a generator of them: records, or with ``table`` the rows of the table. They are
      written beside the output as JSON lines, named by their content: the same rows are the same job;
    - a path as text, ``Path`` or ``ObjectStoragePath``: ``input_data_path``.

    What it returns is data, and no template. The task's XCom is that of the operator.

    Args:
        python_callable: The function.
        multiple_outputs: Whether each field of the result is pushed under its own key, too.
        kwargs: The arguments of ``LLMEngineBatchCompletionsOperator``, but that the function may give fields of the
            request instead.

    Raises:
        RequestRefusedError: The arguments are wrong whatever the function returns; when the DAG is parsed.
    """

    def decorate(function: Callable[..., Any]) -> _BatchTask:
        return _BatchTask.of(function, kwargs, multiple_outputs=multiple_outputs)

    return cast("TaskDecorator", decorate if python_callable is None else decorate(python_callable))
