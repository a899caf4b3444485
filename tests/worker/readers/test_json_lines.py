from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator

import pytest

from airflow_llmengine.worker.readers.json_lines import read_json_lines
from tests.worker.readers.files import AWKWARD_SIZES, endless, json_lines, outcomes, read_of, values


def read(data: bytes, *, block: int = 2**18, limit: int = 2**20) -> list[object]:
    return outcomes(read_json_lines(read_of(data), "x.jsonl", block_bytes=block, limit=limit))


@pytest.mark.parametrize("block", AWKWARD_SIZES)
def test_a_line_ends_at_a_line_feed_and_nowhere_else(block: int) -> None:
    separators = "\u2028\u2029\u0085\x1c\x1d\x1e\x0b\x0c".encode()
    in_strings = "a\u2028b\u2029c\u0085d"
    data = json.dumps({"prompt": in_strings}, ensure_ascii=False).encode() + b"\n" + b"[1,\r2]\r\n" + b'"' + separators
    assert read(data, block=block) == [{"prompt": in_strings}, [1, 2], "! invalid_json"]


@pytest.mark.parametrize("block", AWKWARD_SIZES)
def test_blank_lines_are_no_records_but_count_for_the_line_numbers(block: int) -> None:
    data = b'\n \t \r\n"a"\n\r\n\n"b"\n   '
    records = list(read_json_lines(read_of(data), "x.jsonl", 7, block_bytes=block))
    assert [(record.index, record.location, record.value, record.size) for record in records] == [
        (7, "line 3 of x.jsonl", "a", 3),
        (8, "line 6 of x.jsonl", "b", 3),
    ]


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\t\n  "])
def test_nothing_is_no_records(data: bytes) -> None:
    assert read(data) == []


@pytest.mark.parametrize("block", AWKWARD_SIZES)
def test_the_last_line_needs_no_end(block: int) -> None:
    assert read(b"1\n2", block=block) == [1, 2]
    assert read(b"1\n2\n", block=block) == [1, 2]
    assert read(b"1\r\n2\r", block=block) == [1, 2]


@pytest.mark.parametrize("block", AWKWARD_SIZES)
def test_a_fault_is_its_own_lines_alone(block: int) -> None:
    data = b"\n".join(
        [
            b'{"a":1}',
            b'{"a":',
            b'"\xff"',
            b'"\\ud800"',
            b'{"a":1,"a":2}',
            b"[NaN]",
            b"[" * 1000,
            b"9" * 5000,
            b"x",
            b"2",
        ]
    )
    unicode, syntax = "! invalid_unicode", "! invalid_json"
    assert read(data, block=block) == [{"a": 1}, syntax, unicode, unicode, *[syntax] * 5, 2]


def test_an_error_tells_file_line_and_column_and_no_text() -> None:
    (record,) = read_json_lines(read_of(b'\n\n  {"prompt": "a secret" x}'), "in/x.jsonl", 4)
    assert record.error is not None
    assert (record.value, record.error.index) == (None, 4)
    assert record.error.message == ("line 3 of in/x.jsonl: it is not valid JSON: expecting ',' delimiter at column 25.")


@pytest.mark.parametrize("block", AWKWARD_SIZES)
def test_a_line_above_the_limit_is_skipped(block: int) -> None:
    longest, too_long = json_lines("x" * 98), json_lines("x" * 99)
    data = longest + too_long + longest + too_long + too_long + b"1\n" + too_long.strip()
    assert read(data, block=block, limit=100) == [
        "x" * 98, "! record_too_large", "x" * 98, "! record_too_large", "! record_too_large", 1, "! record_too_large"
    ]  # fmt: skip


def test_a_line_above_the_limit_says_how_long_it_is() -> None:
    (record,) = read_json_lines(read_of(json_lines("x" * 99)), "x.jsonl", limit=100, block_bytes=8)
    assert record.error is not None
    assert record.error.message == "line 1 of x.jsonl: it takes 101 bytes, and a record may take 100 at most."
    assert record.size == 101


def test_a_line_of_any_length_is_skipped_in_little_memory() -> None:
    def pieces() -> Iterator[bytes]:
        yield b'1\n"'
        for _ in range(600):
            yield b"x" * 2**18
        yield b'"\n2\n'

    tracemalloc.start()
    try:
        found = outcomes(read_json_lines(endless(pieces()), "x.jsonl", limit=2**22))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [1, "! record_too_large", 2]
    assert peak < 12 * 2**20


def test_memory_does_not_grow_with_the_number_of_lines() -> None:
    def peak_over(lines: int) -> int:
        block = json_lines({"prompt": "x" * 200}) * 500
        tracemalloc.start()
        try:
            count = sum(1 for _ in read_json_lines(endless(block for _ in range(lines // 500)), "x.jsonl"))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert count == lines
        return peak

    assert peak_over(15_000) < 1.2 * peak_over(2_000)


def test_byte_order_marks_of_joined_files_are_no_content() -> None:
    mark = b"\xef\xbb\xbf"
    text = json.dumps("\ufeff", ensure_ascii=False).encode()
    data = b"1\n" + mark + b'{"a": 2}\n' + mark + b"\n3\n" + text
    assert read(data) == [1, {"a": 2}, 3, "\ufeff"]


def test_indices_go_on_from_the_first() -> None:
    assert [record.index for record in read_json_lines(read_of(b"1\nx\n3"), "x", 10)] == [10, 11, 12]
    assert values(read_json_lines(read_of(b"1\n2"), "x")) == [1, 2]
