"""What the schema can't say about a table: which fields go together, and whether records can be made of them.

What depends on the input (its columns, and whether a template can be read) only the worker sees, before it loads the
engine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from pydantic import ValidationError

from airflow_llmengine.spec.check_chat import UNSERVED
from airflow_llmengine.spec.check_record import check_record
from airflow_llmengine.spec.output_schema import ColumnType, read_columns
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.structured_output import STRUCTURE_FIELDS
from airflow_llmengine.spec.table import MOST_BYTES, TABLE, Table
from airflow_llmengine.spec.validation import OTHER_NAMES, Refusal, refusals_of
from airflow_llmengine.spec.wire_faults import LONGEST_SHOWN, path_step

_NO_COLUMN = "a table has no column for it"
_CALLS = "the model would answer with calls, and a table has no column for those"
_OF_THE_TABLE = "the table's own prompt or messages say it"

NOT_IN_TABLES: Mapping[str, str] = {
    "prompt": _OF_THE_TABLE,
    "messages": _OF_THE_TABLE,
    "logprobs": _NO_COLUMN,
    "top_logprobs": _NO_COLUMN,
    "prompt_logprobs": _NO_COLUMN,
    "return_token_ids": _NO_COLUMN,
    "tools": _CALLS,
    "tool_choice": _CALLS,
    "parallel_tool_calls": _CALLS,
    "metadata": "the input's own columns are kept in the output",
    "user": "the input's own columns are kept in the output",
    "n": "a row has one completion",
}
"""Fields of a V2 record that a table says by itself, or whose results have no column: each with the reason."""

_NOT_BY_ROW: Mapping[str, str] = {
    **NOT_IN_TABLES,
    "model": "the job's model is that of all rows",
    "stream": "a batch has no stream",
    "stream_options": "a batch has no stream",
    **dict.fromkeys(UNSERVED, "it has no effect on an answer"),
}
"""What can't be different from row to row either."""

_OF_SAMPLE = re.compile(r"\btable\.parameters\.(prompt|messages)\b")


def table_refusals(table: Table, request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    """Say everything for which a job must not be launched with this table.

    Args:
        table: What ``parse_table`` has read.
        request: The job. What is wrong with it whatever the table says is ``check``'s business.
    """
    yield from _input_refusals(request)
    yield from _template_refusals(table)
    yield from _parameter_refusals(table)
    yield from _parameter_column_refusals(table)
    columns, refused = ({}, []) if table.output_schema is None else read_columns(table.output_schema)
    yield from refused
    yield from _structure_refusals(table)
    yield from _column_refusals(table)
    yield from _format_refusals(table, request, columns)
    if not refused:
        yield from _sample_refusals(table, request)
    size = len(table.model_dump_json())
    if size > MOST_BYTES:
        yield Refusal(TABLE, f"takes {size} bytes as JSON, and {MOST_BYTES} is the most")


def _input_refusals(request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    if request.content is not None:
        yield Refusal("content", "can't be given with a table", "give input_data_path, the table's files")
    if request.tool_config is not None:
        yield Refusal("tool_config", "is for V1 content alone, and a table's rows are V2 records", "leave it out")


def _template_refusals(table: Table) -> Iterator[Refusal]:
    if table.prompt is not None and table.messages is not None:
        yield Refusal(f"{TABLE}.prompt", "prompt and messages are both given", "give exactly one of the two")
    elif table.prompt is None and table.messages is None:
        yield Refusal(f"{TABLE}.prompt", "neither prompt nor messages is given", "give exactly one of the two")
    if table.prompt is not None and not table.prompt.strip():
        yield Refusal(f"{TABLE}.prompt", "is empty", "write a template over the columns, for example {{ text }}")
    if table.messages is not None and not any(message.content.strip() for message in table.messages):
        yield Refusal(f"{TABLE}.messages", "is empty", "give at least one message with a template over the columns")


def _parameter_refusals(table: Table) -> Iterator[Refusal]:
    model = table.record_model
    for name, value in table.parameters.items():
        field = model.model_fields.get(name)
        asks_for_nothing = value is None or (field is not None and value == field.get_default())
        if name in NOT_IN_TABLES and not asks_for_nothing:
            yield Refusal(f"{TABLE}.parameters.{name}", f"can't be given: {NOT_IN_TABLES[name]}", "leave it out")
    # One that is misspelt is told of as such.
    limits = ["max_tokens", *(name for name, meant in OTHER_NAMES.items() if meant == "max_tokens")]
    if table.prompt is not None and not any(
        table.parameters.get(name) is not None or name in table.parameter_columns for name in limits
    ):
        yield Refusal(
            f"{TABLE}.parameters.max_tokens",
            "is not given, and a completion ends after 16 tokens then",
            "give the most tokens that a row's completion may have",
        )


def _parameter_column_refusals(table: Table) -> Iterator[Refusal]:
    known = table.record_model.model_fields
    for name, column in table.parameter_columns.items():
        path = f"{TABLE}.parameter_columns{path_step(name[:LONGEST_SHOWN])}"
        if name in _NOT_BY_ROW:
            yield Refusal(path, f"can't be given: {_NOT_BY_ROW[name]}", "leave it out")
        elif name not in known:
            near = OTHER_NAMES.get(name) or next(iter(get_close_matches(name, known, n=1)), None)
            yield Refusal(path, "is no field of a V2 record", f"did you mean {near}?" if near else "leave it out")
        elif not column:
            yield Refusal(path, "names no column", "give the column's name")


def _structure_refusals(table: Table) -> Iterator[Refusal]:
    """With an output schema, nothing else may say what form the answer has."""
    if table.output_schema is None:
        return
    for name in (*STRUCTURE_FIELDS, "echo"):
        for field, given in (
            ("parameters", bool(table.parameters.get(name))),
            ("parameter_columns", name in table.parameter_columns),
        ):
            if given:
                yield Refusal(
                    f"{TABLE}.{field}.{name}",
                    "contradicts output_schema, which says what the answer is",
                    "leave it out",
                )


def _column_refusals(table: Table) -> Iterator[Refusal]:
    kept = Counter(table.columns or ())
    for name, times in kept.items():
        if times > 1:
            yield Refusal(f"{TABLE}.columns", f"names {_shown(name)} {times} times", "name it once")
    seen: dict[str, str] = {}
    for field, name in table.made_columns:
        place = field if field != "output_schema" else f"output_schema.properties{path_step(name)}"
        if name in seen:
            yield Refusal(
                f"{TABLE}.{place}", f"the output has {_shown(name)} from {seen[name]} too", "give another name"
            )
        elif name in kept:
            yield Refusal(
                f"{TABLE}.{place}",
                f"the output has a column {_shown(name)} of the input too",
                "give another name, or leave that out of columns",
            )
        seen.setdefault(name, place)


def _format_refusals(
    table: Table, request: CreateBatchCompletionsV1Request, columns: Mapping[str, ColumnType]
) -> Iterator[Refusal]:
    found = table.format_of_output(request.output_data_path)
    if found is None:
        yield Refusal(
            "output_data_path",
            "has an ending that says no format of a table",
            "let it end in .parquet, .csv, .tsv, .arrow or .jsonl, or give table.output_format",
        )
    if found in ("csv", "tsv"):
        for name, column in columns.items():
            if column.kind in ("list", "struct"):
                yield Refusal(
                    f"{TABLE}.output_schema.properties{path_step(name)}",
                    f"is a {column.kind}, which {found} has no form for",
                    "write Parquet, Arrow or JSON lines, or leave it out",
                )


def _sample_refusals(table: Table, request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    """Refuse what would be wrong with the record of every row."""
    if (table.prompt is None) == (table.messages is None) or table.messages == []:
        return
    model = table.record_model
    told = NOT_IN_TABLES.keys() | (set() if table.output_schema is None else {*STRUCTURE_FIELDS})
    record = {name: value for name, value in table.parameters.items() if name not in told}
    record |= table.record_form()
    record |= table.sample_text()
    try:
        sample = model.model_validate(record)
    except ValidationError as error:
        for refusal in refusals_of(error, model):
            yield Refusal(_in_table(f"{TABLE}.parameters.{refusal.path}"), refusal.reason, refusal.remedy)
        return
    refused = check_record(sample, request, prefix=f"{TABLE}.parameters.")
    if refused is not None:
        yield Refusal("", _in_table(refused[1]))


def _in_table(path: str) -> str:
    return _OF_SAMPLE.sub(r"table.\1", path)


def _shown(name: str) -> str:
    return ascii(name if len(name) <= LONGEST_SHOWN else name[:LONGEST_SHOWN] + "...")
