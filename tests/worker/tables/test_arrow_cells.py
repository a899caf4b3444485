"""Cells of Arrow's columns that Python has no exact form for."""

from __future__ import annotations

import datetime
import warnings
from typing import Any

import pyarrow
import pytest

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.readers.errors import InputInvalidError
from airflow_llmengine.worker.tables.arrow_cells import CellFault, cells_of, require_time_zones

MAP = pyarrow.map_(pyarrow.string(), pyarrow.int32())
BEFORE_1970 = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - as columns without a zone have it


def fault(cell: Any) -> str:
    assert isinstance(cell, CellFault)
    assert cell.error_type is RecordErrorType.INVALID_RECORD
    return cell.reason


@pytest.mark.parametrize("kind", [MAP, pyarrow.list_(MAP), pyarrow.struct([("m", MAP)])])
def test_a_key_that_stands_twice_is_told_and_not_lost(kind: pyarrow.DataType) -> None:
    def held(pairs: list[tuple[str, int]]) -> Any:
        return [pairs] if pyarrow.types.is_list(kind) else {"m": pairs} if pyarrow.types.is_struct(kind) else pairs

    column = pyarrow.array([held([("secret", 1), ("secret", 2)]), held([("a", 1), ("b", 2)]), None], kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second, third = cells_of(column)
    within = "holds what a template can't have, such as a name twice: write it as text"
    assert fault(first) in ("is a map that has one key twice: leave one of them out", within)
    assert second == ([{"a": 1, "b": 2}] if isinstance(second, list) else held({"a": 1, "b": 2}))  # type: ignore[arg-type]
    assert third is None


def test_keys_that_are_no_keys_in_python_are_told() -> None:
    kind = pyarrow.map_(pyarrow.struct([("x", pyarrow.int32())]), pyarrow.int32())
    first, second = cells_of(pyarrow.array([[({"x": 1}, 2)], []], kind))
    assert fault(first) == "is a map whose keys are lists or structs: write it as a list"
    assert second == {}


def test_a_struct_with_one_name_twice_has_no_cells() -> None:
    column = pyarrow.StructArray.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    assert fault(cells_of(column)[0]) == "holds what a template can't have, such as a name twice: write it as text"


@pytest.mark.parametrize(
    ("nanoseconds", "moment"),
    [
        (-1, BEFORE_1970),
        (-1000, BEFORE_1970),
        (-1001, BEFORE_1970 - datetime.timedelta(microseconds=1)),
        (999, BEFORE_1970 + datetime.timedelta(microseconds=1)),
        (-(2**63) + 1, datetime.datetime(1677, 9, 21, 0, 12, 43, 145224)),  # noqa: DTZ001
        (2**63 - 1, datetime.datetime(2262, 4, 11, 23, 47, 16, 854775)),  # noqa: DTZ001
    ],
)
def test_times_are_cut_towards_the_past(nanoseconds: int, moment: datetime.datetime) -> None:
    kind = pyarrow.timestamp("ns")
    assert cells_of(pyarrow.array([nanoseconds, None], kind)) == [moment, None]
    assert cells_of(pyarrow.array([[nanoseconds, None]], pyarrow.list_(kind))) == [[moment, None]]
    assert cells_of(pyarrow.array([{"t": nanoseconds}], pyarrow.struct([("t", kind)]))) == [{"t": moment}]
    assert cells_of(pyarrow.array([[("k", nanoseconds)]], pyarrow.map_(pyarrow.string(), kind))) == [{"k": moment}]
    assert cells_of(pyarrow.array([nanoseconds], kind).dictionary_encode()) == [moment]


def test_times_of_a_zone_are_cut_towards_the_past() -> None:
    [moment] = cells_of(pyarrow.array([-1], pyarrow.timestamp("ns", "+05:30")))
    assert str(moment) == "1970-01-01 05:29:59.999999+05:30"


@pytest.mark.parametrize("narrow", [pyarrow.float32(), pyarrow.float16()])
def test_a_narrow_float_has_no_digits_that_it_has_not_within_a_list_either(narrow: pyarrow.DataType) -> None:
    assert cells_of(pyarrow.array([0.1, None], narrow)) == [0.1, None]
    assert cells_of(pyarrow.array([[0.1, None], None], pyarrow.list_(narrow))) == [[0.1, None], None]
    assert cells_of(pyarrow.array([[0.1]], pyarrow.list_(narrow, 1))) == [[0.1]]
    assert cells_of(pyarrow.array([[0.1]], pyarrow.large_list(narrow))) == [[0.1]]
    assert cells_of(pyarrow.array([{"a": 0.1}], pyarrow.struct([("a", narrow)]))) == [{"a": 0.1}]
    assert cells_of(pyarrow.array([[("a", 0.1)]], pyarrow.map_(pyarrow.string(), narrow))) == [{"a": 0.1}]


ODD_ZONE = pyarrow.timestamp("s", "Nowhere/At_all")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ODD_ZONE, 1),
        (pyarrow.list_(ODD_ZONE), [1]),
        (pyarrow.struct([("t", ODD_ZONE)]), {"t": 1}),
        (pyarrow.map_(pyarrow.string(), ODD_ZONE), [("k", 1)]),
    ],
)
def test_a_zone_that_is_not_known_is_told_wherever_it_is(kind: pyarrow.DataType, value: Any) -> None:
    for look in (lambda: require_time_zones(kind), lambda: cells_of(pyarrow.array([value], kind))):
        with pytest.raises(InputInvalidError, match="times of the zone 'Nowhere/At_all', which is not known"):
            look()
