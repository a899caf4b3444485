"""The columns that a job makes: names, types and values."""

from __future__ import annotations

import datetime

import pyarrow

from airflow_llmengine.spec.table import Table
from airflow_llmengine.worker.tables.result_columns import ResultColumns
from airflow_llmengine.worker.tables.results import RowResult, read_values

SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["good", "bad"]},
        "stars": {"type": "integer"},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "when": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "points": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"at": {"type": "integer"}, "note": {"type": ["string", "null"]}},
                "required": ["at", "note"],
            },
        },
    },
    "required": ["mood", "stars", "share", "sure", "when", "day", "points"],
}


def test_columns_of_a_schema_have_its_types() -> None:
    table = Table(prompt="x", output_schema=SCHEMA, error_column="why not", prompt_tokens_column="read")
    columns = ResultColumns(table)
    point = pyarrow.struct([("at", pyarrow.int64()), ("note", pyarrow.string())])
    assert pyarrow.schema(columns.fields) == pyarrow.schema(
        [
            ("mood", pyarrow.string()),
            ("stars", pyarrow.int64()),
            ("share", pyarrow.float64()),
            ("sure", pyarrow.bool_()),
            ("when", pyarrow.timestamp("us", "UTC")),
            ("day", pyarrow.date32()),
            ("points", pyarrow.list_(point)),
            ("why not", pyarrow.string()),
            ("read", pyarrow.int64()),
        ]
    )
    text = (
        '{"mood": "good", "stars": 5, "share": 1, "sure": true, "when": "2024-02-29T12:00:00Z", "day": "2024-02-29", '
        '"points": [{"at": 1, "note": null}]}'
    )
    whole = RowResult(values=read_values(text, table.schema_columns), prompt_tokens=7)
    arrays = columns.arrays([whole, RowResult(error="timeout: too late")])
    assert [array.to_pylist() for array in arrays] == [
        ["good", None],
        [5, None],
        [1.0, None],
        [True, None],
        [datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC), None],
        [datetime.date(2024, 2, 29), None],
        [[{"at": 1, "note": None}], None],
        [None, "timeout: too late"],
        [7, None],
    ]


def test_without_a_schema_there_is_the_completion() -> None:
    columns = ResultColumns(Table(prompt="x"))
    assert columns.fields == [pyarrow.field("completion", pyarrow.string())]
    assert columns.arrays([RowResult("a"), RowResult()])[0].to_pylist() == ["a", None]
    assert [len(array) for array in columns.arrays([])] == [0]
