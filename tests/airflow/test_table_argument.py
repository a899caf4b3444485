"""The argument ``table``: what Airflow renders of it and what not, what is refused early, and what a worker is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization
from pydantic import BaseModel, Field

from airflow_llmengine.decorators.batch_completions import LLMEngineBatchCompletionsDecoratedOperator
from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from airflow_llmengine.operators.request_arguments import Verbatim, unwrap
from airflow_llmengine.operators.staging import INLINE_TABLE_BYTES, told_table
from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.spec.table import parse_table
from airflow_llmengine.storage.filesystem import Storage
from tests.airflow.operators_in_tests import connection
from tests.airflow.test_operator_arguments import UpstreamValue, rendered, unmapped

PROMPT = "{{ text }} {% if urgent %}!{% endif %} {# no comment #}\n"
CONTENT = {"prompts": ["x"], "max_new_tokens": 4, "temperature": 0}
TABLE: dict[str, Any] = {"prompt": PROMPT, "parameters": {"max_tokens": 20}}


class Judgement(BaseModel):
    """What is thought of it."""

    sentiment: Literal["positive", "neutral", "negative"]
    score: int = Field(ge=1, le=5)


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("dag", schedule=None) as dag:
        yield dag


def operator(table: Any, **arguments: Any) -> LLMEngineBatchCompletionsOperator:
    return LLMEngineBatchCompletionsOperator(
        **{
            "task_id": "job",
            "input_data_path": "s3://in/x.parquet",
            "output_data_path": "s3://out/x.parquet",
            "model_config": {"model": "m"},
            "table": table,
            **arguments,
        }
    )


def table_of(job: LLMEngineBatchCompletionsOperator, **context: Any) -> Any:
    """The argument as the task has it when it runs."""
    rendered(job, **context)
    return unwrap(job.table)


@pytest.mark.parametrize("native", [True, False])
def test_templates_over_columns_pass_letter_for_letter_and_the_rest_is_rendered(native: bool) -> None:
    schema = {"type": "object", "properties": {"{{ x }}": {"type": "string", "pattern": "{{ y }}"}}}
    messages = [{"role": "user", "content": PROMPT}]
    parameters = {"temperature": "{{ 0.5 }}", "max_tokens": 5, "chat_template": "{{ messages }}"}
    with DAG("dag", schedule=None, render_template_as_native_obj=native):
        prompted = operator({**TABLE, "completion_column": "answer_{{ run_id }}", "columns": ["{{ run_id }}", "b"]})
        chat = operator({"messages": messages, "parameters": parameters, "output_schema": schema}, task_id="chat")
    for _ in range(2):
        assert table_of(prompted) == {**TABLE, "completion_column": "answer_run-1", "columns": ["run-1", "b"]}
        assert table_of(chat) == {
            "messages": messages,
            "parameters": {**parameters, "temperature": 0.5 if native else "0.5"},
            "output_schema": schema,
        }
    assert messages == [{"role": "user", "content": PROMPT}], "what the author gave was changed"
    assert parameters["chat_template"] == "{{ messages }}"


def test_its_json_text_is_the_same_as_the_object_and_a_template_may_give_it() -> None:
    assert table_of(operator(json.dumps(TABLE))) == TABLE
    late = operator("{{ params.table | tojson }}")
    late.render_template_fields({"params": {"table": TABLE}})
    assert late._options().table == parse_table(TABLE)
    for nothing in (None, "", "{{ '' }}"):
        job = operator(nothing, input_data_path="s3://in/x.jsonl", output_data_path="s3://out/x.json")
        rendered(job)
        assert job._options().table is None
    with pytest.raises(RequestRefusedError, match="the table is not JSON"):
        operator('{"prompt": "{{ text }}", "parameters": {{ params.parameters }}}')


@pytest.mark.parametrize("native", [True, False])
def test_a_field_whose_template_gives_nothing_is_not_given(native: bool) -> None:
    optional = {
        "error_column": "{{ params.error }}",
        "completion_column": "{{ '' }}",
        "on_null": "{{ params.on_null }}",
    }
    with DAG("dag", schedule=None, render_template_as_native_obj=native):
        job = operator({**TABLE, **optional})
    job.render_template_fields({"params": {"error": None, "on_null": "skip"}})
    table = job._options().table
    assert table is not None
    assert table.made_columns == [("completion_column", "completion")]
    assert table.on_null == "skip"
    with pytest.raises(RequestRefusedError, match=r"table\.error_column: must be a string that is not empty"):
        operator({**TABLE, "error_column": ""})


def test_xcoms_in_it_are_resolved_and_not_rendered(dag: DAG) -> None:
    job = operator(
        {
            "messages": [{"role": "user", "content": UpstreamValue(PROMPT)}],
            "parameters": UpstreamValue({"stop": ["{{ x }}"]}),
        }
    )
    expected = {"messages": [{"role": "user", "content": PROMPT}], "parameters": {"stop": ["{{ x }}"]}}
    assert table_of(job) == expected
    whole = operator(UpstreamValue(TABLE), task_id="whole")
    for _ in range(2):
        assert table_of(whole) == TABLE

    @task
    def made() -> Any: ...

    operator({**TABLE, "prompt": made()}, task_id="below")
    assert dag.task_dict["below"].upstream_task_ids == {"made"}


def test_mapped_tasks_protect_it_too(dag: DAG) -> None:
    partial = LLMEngineBatchCompletionsOperator.partial
    fields = {"input_data_path": "in.parquet", "model_config": {"model": "m"}}
    shared = partial(task_id="shared", table={**TABLE, "output_schema": Judgement}, **fields).expand(
        output_data_path=["a.parquet"]
    )
    assert table_of_unmapped(shared) == {**TABLE, "output_schema": Judgement.model_json_schema()}
    literal = partial(task_id="literal", output_data_path="{{ run_id }}.parquet", **fields).expand(
        table=[{**TABLE, "output_schema": Judgement}]
    )
    assert table_of_unmapped(literal) == {**TABLE, "output_schema": Judgement.model_json_schema()}
    typed = {**TABLE, "output_schema": Judgement}
    kwargs = partial(task_id="kwargs", **fields).expand_kwargs([{"table": typed, "output_data_path": "a.parquet"}])
    assert table_of_unmapped(kwargs) == {**TABLE, "output_schema": Judgement.model_json_schema()}
    text = json.dumps(DagSerialization.to_dict(dag))
    # Airflow writes the source of a class.
    assert "class Judgement" not in text
    assert text.count("Judgement") == 3
    evil = {**TABLE, "completion_column": "{{ conn.secret.password }}", "parameters": {"max_tokens": "{{ 7 }}"}}
    for name, given in (("upstream", evil), ("text", json.dumps(evil))):
        upstream: Any = partial(task_id=name, output_data_path="a.parquet", **fields).expand(table=[TABLE])
        upstream.expand_input.value["table"] = UpstreamValue([given])
        assert table_of_unmapped(upstream) == evil, "what another task made was rendered"


def table_of_unmapped(mapped: Any) -> Any:
    return unwrap(unmapped(mapped, 0).table)


def test_a_pydantic_model_becomes_its_schema_and_the_serialized_dag_holds_it(dag: DAG) -> None:
    job = operator({**TABLE, "output_schema": Judgement})
    assert unwrap(job.table)["output_schema"] == Judgement.model_json_schema()
    LLMEngineBatchCompletionsOperator.partial(
        task_id="mapped", input_data_path="i.parquet", model_config={"model": "m"}, table=unwrap(job.table)
    ).expand(output_data_path=["a.parquet"])
    text = json.dumps(DagSerialization.to_dict(dag))
    back = DagSerialization.from_dict(json.loads(text))
    of_dag: Any = back.task_dict["job"]
    assert of_dag.table == {**TABLE, "output_schema": Judgement.model_json_schema()}
    assert list(job._options().table.schema_columns) == ["sentiment", "score"]  # type: ignore[union-attr]


def test_a_class_that_has_no_schema_is_refused() -> None:
    class Odd(BaseModel):
        call: Callable[[], int]

    with pytest.raises(RequestRefusedError, match="is the class dict, which is no pydantic model"):
        operator({**TABLE, "output_schema": dict})
    with pytest.raises(RequestRefusedError, match="the model Odd has no JSON Schema"):
        operator({**TABLE, "output_schema": Odd})


@pytest.mark.parametrize(
    ("table", "arguments", "sentence"),
    [
        ({"prompt": "x"}, {}, r"table\.parameters\.max_tokens: is not given"),
        ({**TABLE, "colums": []}, {}, r"table\.colums: unknown field; did you mean columns\?"),
        ({**TABLE, "messages": []}, {}, "prompt and messages are both given"),
        ({**TABLE, "on_null": "ignore"}, {}, r"table\.on_null: "),
        (
            {**TABLE, "parameters": {"max_tokens": 5, "model": "another"}},
            {"priority": "low"},
            r"table\.parameters\.model: is not the job's",
        ),
        ({"messages": "x"}, {}, r"table\.messages: must be a list, not 'x'"),
        ({**TABLE, "parameters": {"max_tokens": "many"}}, {}, r"table\.parameters\.max_tokens"),
        ({**TABLE, "output_schema": {"type": "array"}}, {}, "must be the schema of an object"),
        ({**TABLE, "on_null": "x"}, {"max_runtime_sec": 0}, r"table\.on_null(.|\n)*max_runtime_sec"),
        (TABLE, {"output_data_path": "s3://out/x.txt"}, "output_data_path: has an ending"),
        (TABLE, {"input_data_path": None, "content": CONTENT}, "content: can't be given with a table"),
        (5, {}, "table: "),
    ],
)
def test_what_can_not_be_is_refused_when_the_dag_is_parsed(
    table: Any, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RequestRefusedError, match=sentence):
        operator(table, **arguments)
    if not arguments:
        with pytest.raises(RequestRefusedError, match=sentence):
            operator(table, request="{{ x }}", input_data_path=None, output_data_path=None, model_config=None)


@pytest.mark.parametrize(
    ("table", "arguments"),
    [
        ("{{ params.table | tojson }}", {"output_data_path": "s3://out/folder/"}),
        ({**TABLE, "on_null": "{{ params.on_null }}"}, {"output_data_path": "s3://out/folder/"}),
        ({**TABLE, "parameters": {"max_tokens": "{{ params.most }}"}}, {}),
        ({**TABLE, "output_format": "{{ params.format }}"}, {"output_data_path": "s3://out/x"}),
        (TABLE, {"output_data_path": "s3://out/{{ params.name }}"}),
        ({**TABLE, "parameters": {"max_tokens": 5, "model": "{{ params.model }}"}}, {}),
        ({**TABLE, "parameters": {"max_tokens": 5, "model": "m"}}, {"model_config": {"model": "{{ params.model }}"}}),
        (TABLE, {"model_config": UpstreamValue({})}),
        (TABLE, {"input_data_path": None, "output_data_path": None, "model_config": None, "request": "{{ x }}"}),
    ],
)
def test_what_is_a_template_is_not_judged_before_it_is_rendered(table: Any, arguments: dict[str, Any]) -> None:
    operator(table, **arguments)


def test_it_is_shown_as_an_object() -> None:
    for made in (LLMEngineBatchCompletionsOperator, LLMEngineBatchCompletionsDecoratedOperator):
        assert made.template_fields_renderers["table"] == "json"


def test_what_is_wrong_beside_a_template_is_refused_all_the_same() -> None:
    with pytest.raises(RequestRefusedError, match=r"table\.on_null") as refused:
        operator({**TABLE, "on_null": "x", "output_format": "{{ y }}"}, output_data_path="s3://out/folder/")
    assert len(str(refused.value).splitlines()) == 2
    with pytest.raises(RequestRefusedError, match="tool_config: is for V1 content alone"):
        operator(UpstreamValue(TABLE), tool_config={"name": "code_evaluator"})


def test_misspelt_it_is_told_of() -> None:
    with pytest.raises(RequestRefusedError, match="tabel: unknown argument; did you mean table"):
        operator(None, tabel=TABLE)
    with DAG("dag", schedule=None), pytest.raises(RequestRefusedError, match="did you mean table"):
        LLMEngineBatchCompletionsTaskGroup("group", tabel=TABLE)


def test_when_the_task_runs_it_is_checked_with_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection())
    job = operator(UpstreamValue({**TABLE, "completion_column": "b", "error_column": "b"}))
    rendered(job)
    with pytest.raises(RequestRefusedError, match=r"table\.error_column"):
        job._checked_request(LLMEngineHook())


def test_all_tasks_of_a_group_are_given_it(dag: DAG) -> None:
    LLMEngineBatchCompletionsTaskGroup(
        "group",
        input_data_path="in.parquet",
        output_data_path="out.parquet",
        model_config={"model": "m"},
        table={**TABLE, "output_schema": Judgement},
    )
    plan, replicas, collect = (dag.task_dict[f"group.{name}"] for name in ("plan", "replicas", "collect"))
    expected = {**TABLE, "output_schema": Judgement.model_json_schema()}
    given = [plan.table, replicas.partial_kwargs["table"], collect.table]  # type: ignore[union-attr]
    assert [unwrap(table) for table in given] == [expected] * 3
    assert all(isinstance(table["prompt"], Verbatim) for table in given)
    DagSerialization.from_dict(DagSerialization.to_dict(dag))


def test_another_table_is_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection())
    (tmp_path / "in.csv").write_text("text\nhello\n")
    request = {
        "input_data_path": str(tmp_path / "in.csv"),
        "output_data_path": str(tmp_path / "out.csv"),
        "model_config": {"model": "m"},
    }

    def launched(table: Any) -> JobHandle:
        return LLMEngineHook().create(request, owner="dag/job", series="one", table=table).handle

    one = launched(TABLE)
    assert launched(json.dumps(TABLE)) == one
    assert launched({**TABLE, "on_null": "skip"}).fingerprint != one.fingerprint


def test_a_large_table_is_put_among_the_jobs_own_files(tmp_path: Path) -> None:
    handle = JobHandle(path=str(tmp_path / "out.csv"), fingerprint="f" * 24, generation=1)
    small = parse_table(TABLE)
    assert json.loads(told_table(Storage(), handle, small) or "") == TABLE
    assert told_table(Storage(), handle, None) is None
    assert not list(tmp_path.iterdir())
    large = parse_table({**TABLE, "prompt": "x" * INLINE_TABLE_BYTES})
    place = told_table(Storage(), handle, large)
    assert place is not None
    assert Path(place).parent == tmp_path / f"out.csv.job/{'f' * 24}-1/tables"
    assert parse_table(Path(place).read_bytes()) == large
    assert told_table(Storage(), handle, large) == place, "a retry can't put it there again"
