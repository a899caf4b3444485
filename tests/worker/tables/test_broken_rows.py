"""What is told of a line that is refused as a row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmengine.worker.tables.broken_rows import readable_cells


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        (rb'{"id": 1, "text": "\ud83d", "n": [1, {"a": null}]}', {"id": 1, "n": [1, {"a": None}]}),
        (b'{"id": 1, "text": "\xff", "n": 2}', {"id": 1, "n": 2}),
        (b'{"id": 1, "id": 2, "n": 3}', {"n": 3}),
        (b'{"id": 1, "s": {"a": 1, "a": 2}, "l": [{"a": 1, "a": 1}], "n": 3}', {"id": 1, "n": 3}),
        (b'{"id": 1, "x": NaN, "y": [-Infinity], "z": 1e400, "n": 3}', {"id": 1, "n": 3}),
        (b'{"id": 1, "big": ' + b"9" * 5000 + b', "n": 3}', {"id": 1, "n": 3}),
        (b'{"id": 1, "text": "it was "good"", "n": 3}', {"id": 1}),
        (b'{"id": 1, "text": "cut he', {"id": 1}),
        (b'{"id": 1, "n": 12', {"id": 1}),
        (b'{"id": 1, "n":', {"id": 1}),
        (b'{"id": 1,', {"id": 1}),
        (b'{"id": 1', {}),
        (b'{"id": 1, n: 2, "m": 3}', {"id": 1}),
        (b'{"id": 1, 2: 3}', {"id": 1}),
        (b'{"id": 1} {"id": 2}', {"id": 1}),
        (b' { "id" : 1 , } ', {"id": 1}),
        (b'["id"]', {}),
        (b"", {}),
        (b'{"id": 1, "deep": ' + b"[" * 300 + b"]" * 300 + b"}", {}),
    ],
)
def test_only_what_is_certain_is_told(line: bytes, cells: dict[str, Any]) -> None:
    assert readable_cells(line) == cells


ROWS = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()))


@given(ROWS, st.booleans(), st.data())
def test_cells_before_a_cut_are_as_they_were(row: dict[str, Any], ascii_alone: bool, data: st.DataObject) -> None:
    line = json.dumps(row, ensure_ascii=ascii_alone).encode()
    found = readable_cells(line[: data.draw(st.integers(0, len(line)))])
    assert list(found.items()) == list(row.items())[: len(found)]


@given(st.binary())
def test_any_bytes_may_follow(line: bytes) -> None:
    assert readable_cells(b'{"id": 1, ' + line) in ({"id": 1}, {}) or b'"' in line
