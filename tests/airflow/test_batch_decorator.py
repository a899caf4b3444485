"""``@task.llmengine_batch``: what a function may return, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas  # type: ignore[import-untyped]
import pytest
from airflow.sdk import DAG, Asset, ObjectStoragePath, task
from airflow.sdk.exceptions import TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization
from pydantic import BaseModel

from airflow_llmengine.decorators.batch_completions import (
    LLMEngineBatchCompletionsDecoratedOperator,
    llmengine_batch_task,
)
from airflow_llmengine.exceptions import LaunchForbiddenError, RequestRefusedError
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from airflow_llmengine.operators.request_arguments import Verbatim, unwrap
from tests.airflow.operators_in_tests import EchoJob, connection, task_context
from tests.airflow.test_operator_arguments import UpstreamValue

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be called outside")

MODEL = {"model": "stand-in"}
TABLE: dict[str, Any] = {"prompt": "{{ text }}", "parameters": {"max_tokens": 20}}
# As another task's text gives it: nothing of it is known before.
TABLE_OF_CSV = "{{ " + repr(json.dumps({**TABLE, "input_format": "csv"})) + " }}"
CONTENT = {"prompts": ["PRIVATE {{ x }}"], "max_new_tokens": 4, "temperature": 0}


class Answer(BaseModel):
    """What a model says of a row."""

    urgency: int


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("dag", schedule=None) as dag:
        yield dag


class Table:
    """Stands for Arrow's, which is iterated over by column."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Launched(Exception):
    """Stops a task where its job would be launched."""


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The requests of jobs that would be launched, and none is."""
    from airflow_llmengine.operators import batch_completions

    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(storage_conn_id="store"))
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "aws", "login": "key", "password": "secret"}))
    requests: list[dict[str, Any]] = []

    def launch(_hook: Any, request: Any, **_others: Any) -> Any:
        requests.append(request.given())
        raise Launched

    monkeypatch.setattr(batch_completions, "launch", launch)
    return requests


def made(function: Callable[..., Any], **arguments: Any) -> LLMEngineBatchCompletionsDecoratedOperator:
    """The task of a function, which Airflow has rendered."""
    decorated: Any = llmengine_batch_task(
        **{"task_id": "make", "output_data_path": "out.jsonl", "model_config": MODEL, **arguments}
    )
    output: Any = decorated(function)()
    operator: Any = output.operator
    operator.render_template_fields(task_context())
    return operator  # type: ignore[no-any-return]


def requested(launches: list[dict[str, Any]], returned: Any, **arguments: Any) -> dict[str, Any]:
    def make() -> Any:
        return returned

    with pytest.raises(Launched):
        made(make, **arguments).execute(task_context())
    return launches.pop()


def test_airflow_has_it_by_its_name(dag: DAG) -> None:
    @task.llmengine_batch(output_data_path="out.jsonl", model_config=MODEL)
    def make() -> str:
        """What it is for."""
        return "in.jsonl"

    output: Any = make()
    operator = output.operator
    assert isinstance(operator, LLMEngineBatchCompletionsDecoratedOperator)
    assert (operator.task_id, operator.doc_md, operator.multiple_outputs) == ("make", "What it is for.", True)
    assert operator.operator_name == "@task.llmengine_batch"


def test_a_path_is_the_input(launches: list[dict[str, Any]]) -> None:
    for path in ("in.jsonl", Path("in.jsonl"), {"input_data_path": "in.jsonl"}):
        assert requested(launches, path)["input_data_path"] == "in.jsonl"
    assert requested(launches, Asset("rows", uri="s3://bucket/x.jsonl"))["input_data_path"] == "s3://bucket/x.jsonl"
    assert requested(launches, ObjectStoragePath("file:///in/x.jsonl"))["input_data_path"] == "file:///in/x.jsonl"
    stored = ObjectStoragePath("s3://store@bucket/in/x.jsonl")
    assert requested(launches, stored)["input_data_path"] == "s3://bucket/in/x.jsonl"
    with pytest.raises(RequestRefusedError, match=r"of the connection other, and .* the storage connection store"):
        made(lambda: ObjectStoragePath("s3://other@bucket/in/x.jsonl")).execute(task_context())


def test_fields_that_it_returns_go_before_those_of_the_decorator(launches: list[dict[str, Any]]) -> None:
    returned = {"content": CONTENT, "max_runtime_sec": 60, "model_config": {"model": "other"}}
    assert requested(launches, returned, max_runtime_sec=7, labels={"team": "{{ run_id }}"}) == {
        "content": CONTENT,
        "max_runtime_sec": 60,
        "model_config": {"model": "other"},
        "labels": {"team": "run-1"},
        "output_data_path": "out.jsonl",
    }
    whole = {"input_data_path": "in.jsonl", "output_data_path": "{{ run_id }}", "model_config": MODEL}
    assert requested(launches, whole, output_data_path=None, model_config=None) == whole, "it was rendered"


def test_content_that_it_returns_is_not_shown(launches: list[dict[str, Any]]) -> None:
    from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

    job = made(lambda: {"content": CONTENT})
    with pytest.raises(Launched):
        job.execute(task_context())
    shown = _serialize_rendered_fields(job)
    assert shown["request"]["content"] == "<1 prompts, not shown>"
    assert job.overwrite_rtif_after_execution


@pytest.mark.parametrize(
    ("returned", "arguments", "sentence"),
    [
        (None, {}, "make returned a value of the type NoneType: let it return"),
        (5, {}, "type int"),
        (b"x", {}, "type bytes"),
        (bytearray(), {}, "type bytearray"),
        ({"x"}, {}, "type set"),
        (pandas.DataFrame({"x": [1]}), {}, "returned a DataFrame: let it write that to a file and return the path"),
        (pandas.DataFrame(), {}, "returned a DataFrame"),
        (Table(), {}, r"returned a Table: .*to_pylist\(\) of Arrow"),
        (["x"], {}, "row 1 of what make returned is of the type str"),
        ({"max_runtime_secs": 5}, {}, "did you mean max_runtime_sec"),
        ({}, {}, "neither input_data_path nor content"),
        ("in.jsonl", {"output_data_path": None}, "output_data_path: is required"),
        ([{}], {"output_data_path": None}, "output_data_path: is required"),
        ([], {"table": TABLE}, "make returned no rows, and without any a table has no columns"),
        ([{}], {"table": {**TABLE, "input_format": "csv"}}, "input_format is csv, and make returned rows"),
        ([{}], {"table": TABLE_OF_CSV}, "input_format is csv, and make returned rows"),
        ([], {"table": TABLE_OF_CSV}, "make returned no rows"),
        ("in.jsonl", {"output_data_path": "out.parquet", "table": UpstreamValue({"prompt": "x"})}, "max_tokens"),
    ],
)
def test_what_is_no_input_is_refused(
    launches: list[dict[str, Any]], returned: Any, arguments: dict[str, Any], sentence: str
) -> None:
    def make() -> Any:
        return returned

    with pytest.raises(RequestRefusedError, match=sentence):
        made(make, **arguments).execute(task_context())
    assert not launches


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"max_runtime_sec": 0}, "max_runtime_sec"),
        ({"max_runtime_secs": 5}, "did you mean max_runtime_sec"),
        ({"tabel": TABLE}, "did you mean table"),
        ({"table": {"prompt": "x"}}, r"table\.parameters\.max_tokens"),
        ({"table": TABLE, "content": CONTENT}, "content: can't be given with a table"),
        ({"content": CONTENT, "input_data_path": "in.jsonl"}, "content and input_data_path are both given"),
        ({"data_parallelism": 2}, "LLMEngineBatchCompletionsTaskGroup"),
        ({"engine_args": {"port": 80}}, r"engine_args\.port"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestRefusedError, match=sentence):
        made(lambda: "in.jsonl", **arguments)


def test_an_asynchronous_function_is_refused() -> None:
    async def make() -> str:
        return "in.jsonl"

    with pytest.raises(RequestRefusedError, match="make is asynchronous"):
        made(make)


def test_the_function_is_given_its_arguments_and_the_context(launches: list[dict[str, Any]]) -> None:
    def make(folder: str, *, name: str, run_id: str, map_index_template: str) -> str:
        return f"{folder}/{name}/{run_id}/{map_index_template}.jsonl"

    decorated: Any = llmengine_batch_task(output_data_path="out.jsonl", model_config=MODEL)
    output: Any = decorated(make)("in", name="{{ run_id }}", map_index_template="given")
    job = output.operator
    job.render_template_fields(task_context())
    with pytest.raises(Launched):
        job.execute(task_context(map_index_template="the context's"))
    assert launches.pop()["input_data_path"] == "in/run-1/run-1/given.jsonl"


def test_it_is_mapped_over_the_functions_arguments(dag: DAG, launches: list[dict[str, Any]]) -> None:
    model_config = {"model": "m", "chat_template": "{{ x }}"}

    @task
    def folder() -> str:
        return "out"

    @task.llmengine_batch(output_data_path=folder(), model_config=model_config, table=TABLE, pool="gpus", gpus=2)
    def make(name: str, ending: str) -> str:
        return f"{name}.{ending}"

    output: Any = make.partial(ending="parquet").expand(name=["a", "b"])
    mapped = output.operator
    assert mapped.upstream_task_ids == {"folder"}
    assert mapped.partial_kwargs["pool_slots"] == 2
    assert isinstance(mapped.partial_kwargs["table"]["prompt"], Verbatim)
    DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    mapped.partial_kwargs["request"] = {**mapped.partial_kwargs["request"], "output_data_path": "out.parquet"}
    context = task_context(map_index=1, dag=dag, dag_run=SimpleNamespace(conf={}))
    mapped.render_template_fields(context)
    job = context["task"]
    with pytest.raises(Launched):
        job.execute(context)
    assert launches.pop() == {
        "input_data_path": "b.parquet",
        "output_data_path": "out.parquet",
        "model_config": model_config,
        "gpus": 2,
    }
    assert unwrap(job.table) == TABLE
    assert job.multiple_outputs


def test_a_task_that_was_deferred_knows_its_input_without_calling_the_function_again(
    launches: list[dict[str, Any]],
) -> None:
    pytest.importorskip("airflow.providers.openlineage")

    def make() -> str:
        return "https://host/in.parquet?signature=SECRET"

    job = made(make)
    with pytest.raises(Launched):
        job.execute(task_context())
    with pytest.raises(TaskDeferred) as deferred:
        job.defer(trigger=SimpleNamespace(), method_name="trigger_reentry")
    assert "SECRET" not in str(deferred.value.kwargs)
    resumed = made(make)
    # There was no attempt, of which the rest of the task would be.
    with pytest.raises(RequestRefusedError, match="deferred by another version"):
        resumed.trigger_reentry(task_context(), {}, **(deferred.value.kwargs or {}))
    (dataset,) = resumed.get_openlineage_facets_on_complete(None).inputs
    assert (dataset.namespace, dataset.name) == ("https://host", "in.parquet")


def test_one_decorator_makes_several_tasks(dag: DAG) -> None:
    @task.llmengine_batch(output_data_path="a.jsonl", model_config=MODEL)
    def make() -> str:
        return "in.jsonl"

    make()
    make.override(task_id="other", output_data_path="b.jsonl", outlets=[Asset("b")])()
    make.override(max_runtime_sec=60)()
    tasks: Any = dag.task_dict
    first, other, again = (tasks[name] for name in ("make", "other", "make__1"))
    assert first.request["output_data_path"] == "a.jsonl"
    assert other.request["output_data_path"] == "b.jsonl"
    assert again.request["max_runtime_sec"] == 60
    assert "max_runtime_sec" not in first.request


def test_what_is_overridden_is_the_same_when_it_is_mapped(dag: DAG, launches: list[dict[str, Any]]) -> None:
    @task
    def folder() -> str:
        return "out"

    @task.llmengine_batch(output_data_path="a.jsonl", model_config=MODEL, table=TABLE, pool="gpus", gpus=2)
    def make(name: str) -> str:
        return f"{name}.csv"

    changed = {**TABLE, "output_schema": Answer}
    output: Any = make.override(output_data_path=folder(), gpus=4, cpus=None, table=changed).expand(name=["a"])
    mapped = output.operator
    assert mapped.upstream_task_ids == {"folder"}
    assert mapped.partial_kwargs["pool_slots"] == 4
    assert mapped.partial_kwargs["table"]["output_schema"] == Verbatim(Answer.model_json_schema(), private=False)
    assert "class Answer" not in json.dumps(DagSerialization.to_dict(dag)), "Airflow writes the source of a class"
    with pytest.raises(RequestRefusedError, match="request and gpus were both given"):
        make.override(request={"input_data_path": "x"}).override(gpus=1)
    other: Any = make.override(request={"max_runtime_sec": 60})
    assert other("b").operator.request == {"max_runtime_sec": 60}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"max_runtime_secs": 5}, "did you mean max_runtime_sec"),
        ({"table": {"prompt": 5}}, r"table\.prompt: must be a string"),
        ({"max_runtime_sec": 0}, r"max_runtime_sec: "),
        ({"data_parallelism": 2}, "LLMEngineBatchCompletionsTaskGroup"),
    ],
)
def test_wrong_arguments_of_mapped_tasks_are_refused_when_the_dag_is_parsed(
    dag: DAG, arguments: dict[str, Any], sentence: str
) -> None:
    def make(name: str) -> str:
        return name

    decorated: Any = llmengine_batch_task(output_data_path="out.csv", model_config=MODEL, table=TABLE)
    with pytest.raises(RequestRefusedError, match=sentence):
        decorated(make).override(**arguments).expand(name=["a"])
    with pytest.raises(RequestRefusedError, match=sentence):
        decorated(make).override(**arguments).expand_kwargs([{"name": "a"}])
    shared = {"task_id": "job", "model_config": MODEL, "table": TABLE, **arguments}
    with pytest.raises(RequestRefusedError, match=sentence):
        LLMEngineBatchCompletionsOperator.partial(**shared)
    assert not dag.task_dict


def run(job: LLMEngineBatchCompletionsDecoratedOperator) -> Any:
    return job.execute(task_context(task_id=job.task_id))


@pytest.mark.slow
def test_rows_are_a_table_whose_result_stands_until_they_change(echo_job: EchoJob, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    rows: list[dict[str, Any]] = [{"text": "{{ one }}", "n": 1}, {"text": None, "n": 2}]
    arguments = {"output_data_path": str(output), "table": {**TABLE, "error_column": "error"}}
    result = run(made(lambda: (row for row in rows), **arguments))
    assert (result["records"], result["failed"], result["output_data_path"]) == (2, 1, str(output))
    table = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(row["text"], row["n"], row["completion"]) for row in table] == [
        ("{{ one }}", 1, "{{ one }}"),
        (None, 2, None),
    ]
    inputs = Path(f"{output}.job/inputs")
    (staged,) = inputs.iterdir()
    assert run(made(lambda: rows, **arguments))["job"] == result["job"], "the same rows are the same job"
    rows.append({"text": "three", "n": 3})
    assert run(made(lambda: rows, **arguments))["records"] == 3
    (newer,) = inputs.iterdir()
    assert newer != staged, "rows of an earlier job were left"
    assert echo_job.generations().total() == 3


@pytest.mark.slow
def test_rows_without_a_table_are_records(echo_job: EchoJob, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    rows = [{"prompt": "one", "max_tokens": 4}, {"messages": [{"role": "user", "content": "two"}]}]
    assert run(made(lambda: rows, output_data_path=str(output)))["succeeded"] == 2
    one, two = (json.loads(line) for line in output.read_text().splitlines())
    assert (one["choices"][0]["text"], two["choices"][0]["message"]["content"]) == ("one", "two")


def test_rows_of_a_job_that_is_not_launched_are_taken_back(echo_job: EchoJob, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("another's")
    with pytest.raises(LaunchForbiddenError):
        run(made(lambda: [{"text": "one"}], output_data_path=str(output), table=TABLE))
    assert not list(tmp_path.glob("out.jsonl.job/inputs/*"))
    assert LLMEngineHook().get(str(output)).manifest is None
