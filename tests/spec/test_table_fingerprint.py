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
    [{"on_null": "error"}, {"columns": None}, {"messages": None}, {"parameter_columns": {}}, {"on_null": None}],
)
def test_a_default_that_is_spelled_out_makes_no_other_job(fields: dict[str, Any]) -> None:
    assert name({**TABLE, **fields}) == name(TABLE)


def test_the_order_of_columns_is_a_part_of_the_job() -> None:
    other = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}  # type: ignore[attr-defined]
    assert name({**CHAT, "output_schema": other}) != name({**CHAT, "output_schema": SCHEMA})
