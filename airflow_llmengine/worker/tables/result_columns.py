"""The columns that a job makes: their types, and their values in Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow

from airflow_llmengine.spec.output_schema import ColumnType
from airflow_llmengine.spec.table import Table
from airflow_llmengine.worker.tables.results import RowResult

_TYPES: Mapping[str, Callable[[], pyarrow.DataType]] = {
    "boolean": pyarrow.bool_,
    "integer": pyarrow.int64,
    "number": pyarrow.float64,
    "string": pyarrow.string,
    "timestamp": lambda: pyarrow.timestamp("us", "UTC"),
    "date": pyarrow.date32,
}

_TAKEN: Mapping[str, tuple[pyarrow.DataType, Callable[[RowResult], Any]]] = {
    "completion_column": (pyarrow.string(), lambda row: row.completion),
    "error_column": (pyarrow.string(), lambda row: row.error),
    "finish_reason_column": (pyarrow.string(), lambda row: row.finish_reason),
    "prompt_tokens_column": (pyarrow.int64(), lambda row: row.prompt_tokens),
    "completion_tokens_column": (pyarrow.int64(), lambda row: row.completion_tokens),
}
"""By the field that asks for a column: its type, and what of a result goes there."""


class ResultColumns:
    """The columns that a table asks for, in the order in which the output has them.

    All of them may be null: a row may fail.
    """

    def __init__(self, table: Table) -> None:
        self._columns: list[tuple[pyarrow.Field, Callable[[RowResult], Any]]] = []
        schema = table.schema_columns
        for field, name in table.made_columns:
            if field == "output_schema":
                self._columns.append((pyarrow.field(name, arrow_type(schema[name])), _value_of(name)))
            else:
                kind, taken = _TAKEN[field]
                self._columns.append((pyarrow.field(name, kind), taken))

    @property
    def fields(self) -> list[pyarrow.Field]:
        """Name and type of each."""
        return [field for field, _ in self._columns]

    def arrays(self, rows: Sequence[RowResult]) -> list[pyarrow.Array]:
        """The values of all columns for some rows."""
        return [pyarrow.array([taken(row) for row in rows], field.type) for field, taken in self._columns]


def arrow_type(column: ColumnType) -> pyarrow.DataType:
    """The Arrow type of a column that ``output_schema`` makes."""
    if column.kind == "list" and column.item is not None:
        return pyarrow.list_(arrow_type(column.item))
    if column.kind == "struct":
        return pyarrow.struct([pyarrow.field(name, arrow_type(inner)) for name, inner in column.fields])
    return _TYPES[column.kind]()


def _value_of(name: str) -> Callable[[RowResult], Any]:
    return lambda row: None if row.values is None else row.values[name]
