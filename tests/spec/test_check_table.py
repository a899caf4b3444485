"""What is refused of a table before anything is launched."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.table import Table, parse_table
from airflow_llmengine.spec.validation import RequestInvalidError

PROMPT = {"prompt": "{{ text }}", "parameters": {"max_tokens": 16}}
CHAT = {"messages": [{"role": "user", "content": "{{ text }}"}]}
SCHEMA = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}, "stars": {"type": "integer"}}}


DEEP: dict[str, Any] = {"type": "string"}
for _level in range(200):
    DEEP = {"type": "array", "items": DEEP}


def prompt(**parameters: Any) -> dict[str, Any]:
    return {**PROMPT, "parameters": {"max_tokens": 1, **parameters}}


def chat(**parameters: Any) -> dict[str, Any]:
    return {**CHAT, "parameters": parameters}


def by_row(**columns: Any) -> dict[str, Any]:
    return {**PROMPT, "parameter_columns": columns}


def typed(**fields: Any) -> dict[str, Any]:
    return {**CHAT, "output_schema": SCHEMA, **fields}


def request(**fields: Any) -> dict[str, Any]:
    return {
        "input_data_path": "s3://bucket/in.parquet",
        "output_data_path": "s3://bucket/out.parquet",
        "model_config": {"model": "m"},
        **fields,
    }


def refusals(table: Any, **fields: Any) -> list[str]:
    try:
        validate_request(request(**fields), parse_table(table))
    except RequestInvalidError as error:
        return list(map(str, error.refusals))
    return []


@pytest.mark.parametrize(
    "table",
    [
        PROMPT,
        CHAT,
        {**CHAT, "output_schema": SCHEMA, "error_column": "error", "columns": []},
        {**PROMPT, "on_null": None, "columns": None, "input_format": None, "completion_column": None},
        {**PROMPT, "parameters": {"max_tokens": 3, "n": 1, "logprobs": None, "stream": False, "guided_choice": ["a"]}},
        {"prompt": "{{ text }}", "parameter_columns": {"max_tokens": "length", "seed": "n", "guided_choice": "of"}},
        {**CHAT, "parameters": {"logprobs": False, "max_completion_tokens": 5, "reasoning_effort": "low"}},
    ],
)
def test_what_can_be_run_is_taken(table: dict[str, Any]) -> None:
    assert refusals(table) == []


@pytest.mark.parametrize("path", ["s3://bucket/out/", "/data/out/", "/data/out.csv", "/data/out.ndjson", "/o.TSV"])
def test_an_output_may_be_a_folder_or_a_file_of_any_format(path: str) -> None:
    assert refusals(PROMPT, output_data_path=path) == []


def test_a_file_whose_name_says_nothing_may_be_of_a_given_format() -> None:
    assert refusals({**PROMPT, "output_format": "csv"}, output_data_path="/data/out") == []


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, "table.prompt: neither prompt nor messages is given; give exactly one of the two"),
        ({**PROMPT, **CHAT}, "table.prompt: prompt and messages are both given; give exactly one of the two"),
        ({**PROMPT, "prompt": " \n"}, "table.prompt: is empty; write a template over the columns"),
        ({"messages": []}, "table.messages: is empty; give at least one message with a template over the columns"),
        ({"prompt": "{{ text }}"}, "table.parameters.max_tokens: is not given, and a completion ends after 16"),
        ({**PROMPT, "promt": ""}, "table.promt: unknown field; did you mean prompt?"),
        ({**PROMPT, "on_null": "keep"}, "table.on_null: must be one of error, skip, empty, not 'keep'"),
        ({**PROMPT, "input_format": "xlsx"}, "table.input_format: must be one of parquet, csv, tsv, arrow, jsonl"),
        ({**PROMPT, "partitioning": "directory"}, "table.partitioning: must be hive, not 'directory'"),
        ({**PROMPT, "parameters": {"max_tokens": 0}}, "table.parameters.max_tokens: is 0, which asks for nothing"),
        ({**PROMPT, "parameters": {"max_tokens": "x"}}, "table.parameters.max_tokens: must be an integer"),
        (prompt(temprature=1), "table.parameters.temprature: unknown field; did you mean temperature?"),
        ({"prompt": "{{ a }}", "parameters": {"max_new_tokens": 1}}, "table.parameters.max_new_tokens: unknown"),
        (prompt(n=2), "table.parameters.n: can't be given: a row has one completion; leave it out"),
        (prompt(logprobs=2), "table.parameters.logprobs: can't be given: a table has no column for it"),
        (chat(tools=[{}]), "table.parameters.tools: can't be given: the model would answer with calls"),
        (chat(messages=[]), "table.parameters.messages: can't be given: the table's own"),
        (prompt(user="u"), "table.parameters.user: can't be given: the input's own"),
        (prompt(stream=True), "table.parameters.stream: a batch has no stream; leave it out"),
        (prompt(model="other"), "table.parameters.model: is not the job's"),
        (by_row(max_new_tokens="a"), "table.parameter_columns.max_new_tokens: is no field of a V2 record; did"),
        (by_row(n="a"), "table.parameter_columns.n: can't be given: a row has one completion"),
        (by_row(model="a"), "table.parameter_columns.model: can't be given: the job's model is"),
        (by_row(store="a"), "table.parameter_columns.store: can't be given: it has no effect on an answer"),
        (by_row(seed=""), "table.parameter_columns.seed: names no column; give the column's name"),
        (by_row(seed=3), "table.parameter_columns.seed: must be a string, not 3"),
        ({**PROMPT, "columns": ["a", "b", "a"]}, "table.columns: names 'a' 2 times; name it once"),
        ({**PROMPT, "columns": ["completion"]}, "table.completion_column: the output has a column 'completion'"),
        ({**PROMPT, "error_column": "completion"}, "table.error_column: the output has 'completion' from"),
        (typed(error_column="mood"), "table.error_column: the output has 'mood' from output_schema"),
        (typed(parameters={"guided_json": SCHEMA}), "table.parameters.guided_json: contradicts output_schema"),
        (typed(parameters={"echo": True}), "table.parameters.echo: contradicts output_schema"),
        (typed(parameter_columns={"guided_regex": "a"}), "table.parameter_columns.guided_regex: contradicts"),
        (typed(parameters={"ignore_eos": True}), "table.parameters.ignore_eos: the text would go on"),
        ("{", "the table is not JSON: "),
        ('{"prompt": "a", "prompt": "b"}', "the table is not JSON: the field prompt is given twice in one object"),
        ("[]", "table: the document must be an object, not a list"),
        ({**PROMPT, "prompt": "x" * 2**20}, "table: takes 10"),
        (typed(output_schema=DEEP), "table: is nested more than 128 levels deep; make it flatter"),
        (prompt(guided_json=DEEP), "table: is nested more than 128 levels deep; make it flatter"),
    ],
)  # fmt: skip
def test_what_can_not_be_run_is_refused_by_its_field(table: Any, expected: str) -> None:
    found = refusals(table)
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"output_data_path": "/data/out"}, "output_data_path: has an ending that says no format of a table"),
        ({"output_data_path": "s3://bucket/"}, "output_data_path: names a bucket and no object in it"),
        (
            {"input_data_path": None},
            "input_data_path: neither input_data_path nor content is given; give",
        ),
        ({"tool_config": {"name": "code_evaluator"}}, "tool_config: is for V1 content alone"),
        (
            {"model_config": {"model": "m", "skip_tokenizer_init": True}},
            "table.prompt: is text, and",
        ),
        (
            {"input_data_path": None, "content": {"prompts": ["secret"], "max_new_tokens": 1, "temperature": 0}},
            "content: can't be given with a table; give input_data_path, the table's files",
        ),
    ],
)
def test_what_of_a_request_does_not_go_with_a_table_is_refused(fields: dict[str, Any], expected: str) -> None:
    found = refusals(PROMPT, **fields)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_a_folder_is_no_output_of_a_job_without_a_table() -> None:
    with pytest.raises(RequestInvalidError, match="output_data_path: names a folder"):
        validate_request(request(output_data_path="/data/out/"))


def test_lists_and_objects_have_no_form_in_csv() -> None:
    schema = {"type": "object", "properties": {"all": {"type": "array", "items": {"type": "string"}}}}
    for path in ("/data/out.csv", "/data/out.tsv"):
        [refused] = refusals({**CHAT, "output_schema": schema}, output_data_path=path)
        assert refused.startswith("table.output_schema.properties.all: is a list, which ")
    assert refusals({**CHAT, "output_schema": schema}, output_data_path="/data/out.jsonl") == []


def test_no_message_shows_a_template() -> None:
    table = {
        "prompt": "secret {{ text }}",
        "messages": [{"role": "user", "content": "secret"}],
        "parameters": {"n": "x"},
    }
    assert "secret" not in str(refusals(table))
    assert "secret" not in repr(parse_table(PROMPT | {"prompt": "secret"}))


def test_the_columns_that_are_made_in_their_order() -> None:
    def made(**fields: Any) -> list[str]:
        return [name for _field, name in Table.model_validate({**PROMPT, **fields}).made_columns]

    assert made() == ["completion"]
    assert made(completion_column="answer", prompt_tokens_column="in") == ["answer", "in"]
    assert made(output_schema=SCHEMA) == ["mood", "stars"]
    every = {
        "error_column": "e",
        "finish_reason_column": "f",
        "prompt_tokens_column": "p",
        "completion_tokens_column": "c",
    }
    assert made(output_schema=SCHEMA, completion_column="raw", **every) == ["raw", "mood", "stars", "e", "f", "p", "c"]


def test_none_and_an_empty_text_are_no_table() -> None:
    assert parse_table(None) is None
    assert parse_table(" ") is None
    table = parse_table(PROMPT)
    assert parse_table(table) is table
    assert parse_table('{"prompt": "{{ text }}", "parameters": {"max_tokens": 16}}') == table
