"""Rows of a decorated function, as JSON lines."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from typing import Any

import numpy
import pandas  # type: ignore[import-untyped]
import pytest

from airflow_llmengine.decorators.rows import encode_rows
from airflow_llmengine.exceptions import RequestRefusedError


def encoded(*rows: Any) -> list[Any]:
    return [json.loads(line) for line in encode_rows(rows, "make").splitlines()]


def test_what_json_has_passes_as_it_is() -> None:
    rows: list[Any] = [
        {"text": "{{ x }}\n\ud800 é\0", "n": 2**60, "x": 0.5, "yes": True, "none": None},
        {"list": [1, [2]], "struct": {"a": {"b": []}}, "a b.c": ""},
        {},
    ]
    assert encoded(*rows) == rows
    assert encode_rows(iter(rows), "make").count(b"\n") == 3
    assert encode_rows([], "make") == b""


def test_values_of_a_database_have_one_form() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    (row,) = encoded(
        {
            "at": datetime.datetime(2026, 1, 5, 3, 0, 0, 5, tzinfo=zone),
            "day": datetime.date(2026, 1, 5),
            "time": datetime.time(3, 30),
            "price": decimal.Decimal("10.50"),
            "id": uuid.UUID(int=1),
            "pair": (1, datetime.date(2026, 1, 5)),
        }
    )
    assert row == {
        "at": "2026-01-05T03:00:00.000005+02:00",
        "day": "2026-01-05",
        "time": "03:30:00",
        "price": "10.50",
        "id": "00000000-0000-0000-0000-000000000001",
        "pair": [1, "2026-01-05"],
    }


def test_values_of_numpy_and_pandas_are_pythons_and_missing_ones_null() -> None:
    frame = pandas.DataFrame(
        {
            "n": numpy.array([1, 2], "int32"),
            "x": [0.5, float("nan")],
            "at": [pandas.Timestamp("2026-01-05"), pandas.NaT],
        }
    )
    rows = [*frame.to_dict("records"), {"n": numpy.int64(3), "x": numpy.float32("nan"), "at": numpy.array([[True]])}]
    assert encoded(*rows) == [
        {"n": 1, "x": 0.5, "at": "2026-01-05T00:00:00"},
        {"n": 2, "x": None, "at": None},
        {"n": 3, "x": None, "at": [[True]]},
    ]


def test_times_of_numpy_in_nanoseconds_are_times_and_no_numbers() -> None:
    rows = [
        {"at": numpy.datetime64("2026-01-05T03:00:00.000005", "ns")},
        {"at": numpy.datetime64("NaT", "ns")},
        {"at": numpy.array(["2026-01-05", "NaT"], "datetime64[ns]")},
        {"at": pandas.Series(pandas.to_datetime(["2026-01-05"], utc=True))},
        {"at": numpy.datetime64("2026-01-05")},
    ]
    assert [row["at"] for row in encoded(*rows)] == [
        "2026-01-05T03:00:00.000005",
        None,
        ["2026-01-05T00:00:00", None],
        ["2026-01-05T00:00:00+00:00"],
        "2026-01-05",
    ]


def test_what_is_missing_is_null_in_every_form() -> None:
    missing = [pandas.NA, pandas.array([None], dtype="Int64")[0], decimal.Decimal("NaN"), decimal.Decimal("sNaN")]
    assert encoded({"a": missing}) == [{"a": [None] * len(missing)}]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("PRIVATE", "row 2 of what make returned is of the type str: let it be a dictionary"),
        ({3: "PRIVATE"}, "row 2 of what make returned has a column whose name is of the type int"),
        ({"a": {None: "PRIVATE"}}, "has a column whose name is of the type NoneType"),
        ({"a": b"PRIVATE"}, "row 2 of what make returned has a value of the type bytes in column 'a'"),
        ({"a": [{"b": {"PRIVATE"}}]}, "a value of the type set in column 'a'"),
        ({"a": float("inf")}, "is infinite in column 'a'"),
        ({"a": datetime.timedelta(1)}, "a value of the type timedelta in column 'a'"),
        ({"a": numpy.timedelta64(5, "ns")}, "a value of the type timedelta64 in column 'a'"),
        ({"a": numpy.array([5], "timedelta64[ns]")}, "a value of the type ndarray in column 'a'"),
    ],
)
def test_what_json_has_no_form_for_is_refused_by_place_and_not_quoted(row: Any, sentence: str) -> None:
    with pytest.raises(RequestRefusedError, match=sentence) as refused:
        encode_rows([{"a": 1}, row], "make")
    assert "PRIVATE" not in str(refused.value)
