"""Rows that a function made, as JSON lines: what a job reads as its input."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_llmengine.exceptions import RequestRefusedError

_AS_TEXT = (datetime.date, datetime.time, decimal.Decimal, uuid.UUID)
"""What has one form as text: ISO 8601 for points in time, all digits of a number."""


def encode_rows(rows: Iterable[Any], source: str) -> bytes:
    """Rows as JSON lines.

    Points in time become text as in ISO 8601, decimals and UUIDs text too, and values of numpy those of Python, times
    to the microsecond; NaN, and pandas' NaT and NA, are null.

    Args:
        rows: Objects by the names of columns, or of a record's fields.
        source: What made them, for messages.

    Raises:
        RequestRefusedError: One is no object, or holds what JSON has no form for.
    """
    lines = bytearray()
    for number, row in enumerate(rows, start=1):
        where = f"row {number} of what {source} returned"
        if not isinstance(row, Mapping):
            raise RequestRefusedError(
                f"{where} is of the type {type(row).__name__}: let it be a dictionary, with a value for each column."
            )
        line = json.dumps({_name(name, where): _value(item, name, where) for name, item in row.items()})
        lines += line.encode() + b"\n"
    return bytes(lines)


def _name(name: Any, where: str) -> str:
    if not isinstance(name, str):
        raise RequestRefusedError(
            f"{where} has a column whose name is of the type {type(name).__name__}: let it be text."
        )
    return name


def _value(value: Any, column: str, where: str) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise RequestRefusedError(f"{where} is infinite in column {column!r}, which JSON has no form for.")
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {_name(name, where): _value(item, column, where) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_value(item, column, where) for item in value]
    if isinstance(value, _AS_TEXT):
        return _text(value)
    if type(value).__name__ == "NAType":
        # pandas' NA, in columns of its own types.
        return None
    if hasattr(value, "tolist") and not _is_length_of_time(value):
        return _value(_in_microseconds(value).tolist(), column, where)
    raise RequestRefusedError(
        f"{where} has a value of the type {type(value).__name__} in column {column!r}, which JSON has no form for: let "
        "it be text, a number, true, false or None, or a list or dictionary of these."
    )


def _is_length_of_time(value: Any) -> bool:
    """Whether it is one of numpy's, of which ``tolist`` may make a number without its unit."""
    return getattr(getattr(value, "dtype", None), "kind", None) == "m"


def _in_microseconds(value: Any) -> Any:
    """The same; but of numpy's times in nanoseconds, which ``tolist`` makes numbers of, those in microseconds."""
    return value.astype("datetime64[us]") if str(getattr(value, "dtype", None)) == "datetime64[ns]" else value


def _text(value: Any) -> str | None:
    # pandas' NaT is a datetime, and like a NaN not equal to itself.
    if value.is_nan() if isinstance(value, decimal.Decimal) else value != value:
        return None
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)
