"""A table is a part of what a job is."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.identity import fingerprint
from airflow_llmengine.spec.table import parse_table

TABLE = {"prompt": "{{ text }}", "parameters": {"max_tokens": 16}}
CHAT = {"messages": [{"role": "user", "content": "{{ text }}"}]}
SCHEMA = {"type": "object", "properties": {"mood": {"type": "string"}, "stars": {"type": "integer"}}}


def name(table: dict[str, Any] | None) -> str:
    parsed = parse_table(table)
    request = validate_request(
        {"input_data_path": "/in.parquet", "output_data_path": "/out.parquet", "model_config": {"model": "m"}}, parsed
    )
    return fingerprint(request, input_identity="files:sha256:0", engine="vllm", table=parsed)


def test_a_job_without_a_table_is_the_job_that_it_was_before_there_were_tables() -> None:
    assert name(None) == "c0b5ef2c08fb979eee350ee6"


@pytest.mark.parametrize(
    "table",
    [
        {**TABLE, "prompt": "{{ text }} "},
        {**TABLE, "parameters": {"max_tokens": 17}},
        {**TABLE, "parameter_columns": {"seed": "n"}},
        {**TABLE, "on_null": "skip"},
        {**TABLE, "columns": []},
        {**TABLE, "completion_column": "answer"},
        {**TABLE, "error_column": "error"},
        {**TABLE, "output_format": "csv"},
        {**TABLE, "input_format": "parquet"},
        {**TABLE, "partitioning": "hive"},
        {**TABLE, "output_schema": SCHEMA},
        CHAT,
        {"messages": [{"role": "system", "content": "{{ text }}"}]},
        {"messages": [*CHAT["messages"], *CHAT["messages"]]},
    ],
)
def test_whatever_changes_answers_or_columns_makes_another_job(table: dict[str, Any]) -> None:
    assert name(table) != name(TABLE)
    assert name(table) == name(dict(reversed(table.items())))


@pytest.mark.parametrize(
    "fields",
    [
        {"on_null": "error"},
        {"columns": None},
        {"messages": None},
        {"parameter_columns": {}},
        {"on_null": None},
        {"completion_column": "completion"},
        {"output_format": "parquet"},
        {"parameters": {"max_tokens": "16"}},
        {"parameters": {"max_tokens": 16.0, "temperature": None, "seed": None}},
        {"parameters": {"max_tokens": 16, "echo": False}},
    ],
)
def test_a_default_that_is_spelled_out_makes_no_other_job(fields: dict[str, Any]) -> None:
    assert name({**TABLE, **fields}) == name(TABLE)


def test_the_order_of_columns_is_a_part_of_the_job() -> None:
    other = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}  # type: ignore[attr-defined]
    assert name({**CHAT, "output_schema": other}) != name({**CHAT, "output_schema": SCHEMA})


def test_the_order_of_the_fields_of_a_struct_is_a_part_of_the_job() -> None:
    names: set[str] = set()
    for fields in (SCHEMA["properties"], dict(reversed(SCHEMA["properties"].items()))):  # type: ignore[attr-defined]
        struct = {"type": "object", "properties": fields}
        for part in (struct, {"type": "array", "items": struct}):
            names.add(name({**CHAT, "output_schema": {"type": "object", "properties": {"all": part}}}))
    assert len(names) == 4


def test_columns_are_kept_in_the_inputs_order_whatever_theirs_is() -> None:
    assert name({**TABLE, "columns": ["a", "b"]}) == name({**TABLE, "columns": ["b", "a"]})
    assert name({**TABLE, "columns": ["a"]}) != name({**TABLE, "columns": ["b"]})


def test_parameters_of_a_chat_have_one_spelling() -> None:
    assert name({**CHAT, "parameters": {"seed": "5"}}) == name({**CHAT, "parameters": {"seed": 5}})
    assert name({**CHAT, "parameters": {"seed": "5"}}) != name({**CHAT, "parameters": {"seed": 6}})


def test_a_completion_column_beside_typed_columns_is_another_job() -> None:
    typed = {**CHAT, "output_schema": SCHEMA}
    assert name({**typed, "completion_column": "completion"}) != name(typed)
