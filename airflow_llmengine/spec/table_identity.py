"""What a table says, in one spelling: equal for two tables exactly when the same input becomes the same output."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from airflow_llmengine.spec.output_schema import ColumnType
from airflow_llmengine.spec.table import Table
from airflow_llmengine.spec.wire_model import given_fields


def table_settings(table: Table, output_data_path: str) -> dict[str, Any]:
    """Everything about a table that makes a job another one, by names of a job's fingerprint.

    Args:
        table: What is asked for.
        output_data_path: Where the output goes: the ending of a name may say the format.
    """
    settings = {
        "table": _given(table, output_data_path),
        "table_columns": [name for _field, name in table.made_columns],
    }
    # Objects have no order in a fingerprint, and the fields of structs have one.
    orders = {name: order for name, column in table.schema_columns.items() if (order := _order(column))}
    if orders:
        settings["table_fields"] = orders
    return settings


def _given(table: Table, output_data_path: str) -> dict[str, Any]:
    given = given_fields(table.given(), table)
    if parameters := _parameters(table):
        given["parameters"] = parameters
    else:
        given.pop("parameters", None)
    if table.columns is not None:
        # The output has them in the input's order.
        given["columns"] = sorted(table.columns)
    without = table.model_copy(update={"completion_column": None, "output_format": None})
    if table.written_completion_column == without.written_completion_column:
        given.pop("completion_column", None)
    if table.output_format == without.format_of_output(output_data_path):
        given.pop("output_format", None)
    return given


def _parameters(table: Table) -> dict[str, Any]:
    """The parameters as records have them: ``"50"``, which a template makes, is 50."""
    sample = table.sample_text()
    written = {name: value for name, value in table.parameters.items() if value is not None}
    try:
        record = table.record_model.model_validate({**written, **sample})
    except ValidationError:
        # Checks refuse it; a job that was never checked is told apart all the same.
        return written
    return {name: value for name, value in given_fields(record.given(), record).items() if name not in sample}


def _order(column: ColumnType) -> Any:
    """The names of the fields of a struct, or of one within lists, in their order; None without any."""
    if column.kind == "list" and column.item is not None:
        return _order(column.item)
    return [[name, _order(inner)] for name, inner in column.fields] or None
