"""From a column of Arrow to the cells of templates and parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy
import pyarrow
from pyarrow import types

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.readers.errors import InputInvalidError
from airflow_llmengine.worker.tables.arrow_types import inner_types, with_inner_fields
from airflow_llmengine.worker.tables.row_templates import shown

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CellFault:
    """Stands for a value that Python can't hold."""

    error_type: RecordErrorType
    reason: str
    """The end of a sentence that begins with the column."""


_NOT_UNICODE = CellFault(RecordErrorType.INVALID_UNICODE, "is not UTF-8")
_OUT_OF_RANGE = CellFault(
    RecordErrorType.INVALID_RECORD, "is a time before the year 1 or after the year 9999, or too long"
)
_KEY_TWICE = CellFault(RecordErrorType.INVALID_RECORD, "is a map that has one key twice: leave one of them out")
_ODD_KEYS = CellFault(RecordErrorType.INVALID_RECORD, "is a map whose keys are lists or structs: write it as a list")
_NO_FORM = CellFault(
    RecordErrorType.INVALID_RECORD, "holds what a template can't have, such as a name twice: write it as text"
)


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


def require_time_zones(kind: pyarrow.DataType) -> None:
    """Make sure that the zones of a type's times, also within lists and structs, are known here.

    Raises:
        InputInvalidError: One is not.
    """
    if types.is_timestamp(kind) and kind.tz is not None:
        try:
            pyarrow.lib.string_to_tzinfo(kind.tz)
        except (KeyError, ValueError, pyarrow.ArrowException):
            # Python's own time zones come from the system or from a package.
            raise InputInvalidError(
                f"A column has times of the zone {shown(kind.tz)}, which is not known where the worker runs: install "
                "tzdata there, or convert the column to UTC."
            ) from None
    for inner in inner_types(kind):
        require_time_zones(inner)


def cells_of(column: pyarrow.Array) -> list[Any]:
    """A column's values in Python: None for null; lists, and dictionaries for structs and maps.

    Times are cut to microseconds, which is what Python has.
    """
    kind = column.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        if kind.extension_name in ("arrow.uuid", "arrow.bool8"):
            return list(column.to_pylist())
        return cells_of(column.storage)
    plain = _plain(kind)
    if plain != kind:
        column = column.cast(plain, safe=False)
    finish = finisher(kind)
    try:
        cells: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    except (ValueError, OverflowError, LookupError, TypeError):
        require_time_zones(kind)
        return [_cell(value, finish) for value in column]
    return cells if finish is None else [None if cell is None else finish(cell) for cell in cells]


def finisher(kind: pyarrow.DataType) -> Callable[[Any], Any] | None:
    """What makes a cell of a value that Arrow gives for this type, where that is not yet one; None: it is always.

    A narrow float would show digits as a double that it does not have, and times of nanoseconds are whole numbers.
    """
    if types.is_float32(kind):
        return lambda value: float(str(numpy.float32(value)))
    if types.is_float16(kind):
        return lambda value: float(str(numpy.float16(value)))
    if types.is_timestamp(kind) and kind.unit == "ns":
        zone = None if kind.tz is None else pyarrow.lib.string_to_tzinfo(kind.tz)
        return lambda value: _moment(value, zone)
    if types.is_dictionary(kind):
        return finisher(kind.value_type)
    if types.is_map(kind):
        return _finisher_of_maps(kind)
    if types.is_struct(kind):
        named = {field.name: finish for field in kind if (finish := finisher(field.type)) is not None}
        return (lambda value: _finished(value, named)) if named else None
    if _is_list(kind) and (item := finisher(kind.value_type)) is not None:
        return lambda value: [None if inner is None else item(inner) for inner in value]
    return None


def _finisher_of_maps(kind: pyarrow.MapType) -> Callable[[Any], Any] | None:
    of_key, of_item = finisher(kind.key_type), finisher(kind.item_type)
    if of_key is None and of_item is None:
        return None

    def finish(value: Any) -> Any:
        pairs = [
            (of_key(key) if of_key else key, of_item(item) if of_item and item is not None else item)
            for key, item in (value.items() if isinstance(value, dict) else value)
        ]
        return dict(pairs) if isinstance(value, dict) else pairs

    return finish


def _finished(cells: dict[str, Any], named: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return {name: named[name](value) if name in named and value is not None else value for name, value in cells.items()}


def _moment(nanoseconds: int | datetime, zone: Any) -> datetime:
    if isinstance(nanoseconds, datetime):
        return nanoseconds
    # Towards the past, as of any time that is written with fewer digits.
    moment = _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    return moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)


def _is_list(kind: pyarrow.DataType) -> bool:
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _plain(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The type of which Python has the values, also within lists and structs."""
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pyarrow.int64()
    if types.is_time64(kind) and kind.unit == "ns":
        return pyarrow.time64("us")
    if types.is_duration(kind) and kind.unit == "ns":
        return pyarrow.duration("us")
    if types.is_dictionary(kind):
        value = _plain(kind.value_type)
        return kind if value == kind.value_type else value
    return with_inner_fields(kind, lambda field: field.with_type(_plain(field.type)))


def _cell(value: pyarrow.Scalar, finish: Callable[[Any], Any] | None) -> Any:
    """One value: a file may hold what Python can't, such as text that is not UTF-8 though it says so."""
    try:
        cell = value.as_py(maps_as_pydicts="strict")
        return cell if cell is None or finish is None else finish(cell)
    except UnicodeDecodeError:
        return _NOT_UNICODE
    except OverflowError:
        return _OUT_OF_RANGE
    except KeyError:
        return _KEY_TWICE
    except TypeError:
        return _ODD_KEYS
    except ValueError:
        return _NO_FORM
