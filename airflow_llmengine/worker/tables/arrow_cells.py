"""From a column of Arrow to the cells of templates and parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import pyarrow
from pyarrow import types

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.readers.errors import InputInvalidError
from airflow_llmengine.worker.tables.row_templates import shown


@dataclass(frozen=True, slots=True)
class CellFault:
    """Stands for a value that Python can't hold."""

    error_type: RecordErrorType
    reason: str
    """The end of a sentence that begins with the column."""


_NOT_UNICODE = CellFault(RecordErrorType.INVALID_UNICODE, "is not UTF-8")
_OUT_OF_RANGE = CellFault(RecordErrorType.INVALID_RECORD, "is a time before the year 1 or after the year 9999")


def holds_bytes(kind: pyarrow.DataType) -> bool:
    """Whether cells of a type are bytes, which are no text."""
    if types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def cells_of(column: pyarrow.Array) -> list[Any]:
    """A column's values in Python: None for null; lists, and dictionaries for structs and maps.

    Times are cut to microseconds, which is what Python has.
    """
    kind = column.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return list(column.to_pylist())
        return cells_of(column.storage)
    if types.is_float32(kind) or types.is_float16(kind):
        # As a double it would show digits that the narrower number does not have.
        return [
            None if value is None else float(str((numpy.float32 if types.is_float32(kind) else numpy.float16)(value)))
            for value in column.to_pylist()
        ]
    coarse = _in_microseconds(kind)
    if coarse != kind:
        column = column.cast(coarse, safe=False)
    try:
        cells: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except (UnicodeDecodeError, OverflowError):
        return [_cell(value) for value in column]
    except KeyError:
        # Python's own time zones come from the system or from a package.
        raise InputInvalidError(
            f"A column has times of the zone {shown(str(getattr(kind, 'tz', None)))}, which is not known where the "
            "worker runs: install tzdata there, or convert the column to UTC."
        ) from None
    return cells


def _in_microseconds(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The type with times that Python can hold, also within lists and structs."""
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pyarrow.timestamp("us", kind.tz)
    if types.is_time64(kind) and kind.unit == "ns":
        return pyarrow.time64("us")
    if types.is_duration(kind) and kind.unit == "ns":
        return pyarrow.duration("us")
    if types.is_dictionary(kind):
        value = _in_microseconds(kind.value_type)
        return kind if value == kind.value_type else value
    if types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if types.is_large_list(kind):
        return pyarrow.large_list(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)), kind.list_size)
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(_in_microseconds(kind.key_type), _in_microseconds(kind.item_type))
    return kind


def _cell(value: pyarrow.Scalar) -> Any:
    """One value: a file may hold what it says is UTF-8 and is not."""
    try:
        return value.as_py(maps_as_pydicts="lossy")
    except UnicodeDecodeError:
        return _NOT_UNICODE
    except OverflowError:
        return _OUT_OF_RANGE
