from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from airflow_llmengine.worker.readers import InputCutError, InputInvalidError
from airflow_llmengine.worker.readers.json_array import read_json_array, read_json_object
from tests.worker.readers.files import AWKWARD_SIZES, endless, outcomes, read_of, until_refused, values

ELEMENTS = [
    {"prompt": 'quotes " and \\ and \\" and [{]},', "n": 1},
    {"prompt": "😀 Zürich", "nested": [[1, 2], {"a": []}, {}]},
    [],
    {},
    "text, with ] and \\",
    "",
    -12.5e-3,
    12345678901234567890123,
    True,
    None,
]


def read(data: bytes, *, block: int = 2**18, limit: int = 2**20) -> list[object]:
    return outcomes(read_json_array(read_of(data), "x.json", block_bytes=block, limit=limit))


@pytest.mark.parametrize("block", AWKWARD_SIZES)
@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_elements_come_one_by_one_as_they_were_written(block: int, indent: int | None, ascii_only: bool) -> None:
    data = json.dumps(ELEMENTS, indent=indent, ensure_ascii=ascii_only).encode()
    for document in (data, b" \n" + data.replace(b"\n", b"\r\n") + b"\r\n "):
        assert values(read_json_array(read_of(document), "x.json", block_bytes=block)) == ELEMENTS


@pytest.mark.parametrize("data", [b"[]", b" [ \r\n ] \n"])
def test_an_empty_array_is_no_records(data: bytes) -> None:
    assert read(data) == []


def test_an_element_is_located_by_its_index_from_0() -> None:
    first, second = read_json_array(read_of(b'[ {"a": 1},\n "\xff"]'), "x.json", 5)
    assert (first.index, first.location, first.size) == (5, "element [0] of x.json", 8)
    assert second.error is not None
    assert second.error.message == "element [1] of x.json: byte 2 of it is not UTF-8: write the file in UTF-8."
    assert second.error.index == 6


@pytest.mark.parametrize("block", AWKWARD_SIZES)
def test_a_fault_within_an_element_is_its_own_alone(block: int) -> None:
    faults = [b'"x\\ud800y"', b'{"a": NaN}', b'{"a": 1, "a": 2}', b'"\xff"', b"-Infinity", b"1e999", b"9" * 5000]
    data = b"[" + b",".join(b"%b, %d" % (fault, number) for number, fault in enumerate(faults)) + b"]"
    found = read(data, block=block)
    assert found[1::2] == list(range(len(faults)))
    unicode, syntax = "! invalid_unicode", "! invalid_json"
    assert found[::2] == [unicode, syntax, syntax, unicode, syntax, syntax, syntax]


def test_an_element_that_is_nested_too_deep_is_its_own_fault_alone() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert read(b"[1," + deep + b",2]") == [1, "! invalid_json", 2]


@pytest.mark.parametrize("block", AWKWARD_SIZES)
def test_an_element_above_the_limit_is_skipped(block: int) -> None:
    fits = [b'"' + b"x" * 18 + b'"', b'["' + b"y" * 16 + b'"]', b"1" * 20]
    data = b"[" + b",".join(b"%b , %b " % (value, value[:4] + value[3:]) for value in fits) + b"]"
    found = read(data, block=block, limit=20)
    assert found[::2] == [json.loads(value) for value in fits]
    assert found[1::2] == ["! record_too_large"] * 3


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b'[{"a": 1} {"a": 2}]', "a comma or ] is missing at byte 10"),
        (b'[{"a": 1}, {"a": 2},]', "a value is missing at byte 20"),
        (b"[1,,2]", "a value is missing at byte 3"),
        (b"[,1]", "a value is missing at byte 1"),
        (b"[1 2]", "a comma or ] is missing at byte 3"),
        (b'[1"2"]', "a comma or ] is missing at byte 2"),
        (b"[1:2]", "a comma or ] is missing at byte 2"),
        (b"[1}", "a comma or ] is missing at byte 2"),
        (b"[1] 2", "something follows the end of the document at byte 4"),
        (b"[1]]", "something follows the end of the document at byte 3"),
        (b'[1, {"a" 1}]', "element [1] of x.json, which begins at byte 4: it is not valid JSON: expecting ':'"),
        (b'[{"a": [1}]]', "element [0] of x.json, which begins at byte 1: it is not valid JSON"),
        (b"[nul]", "element [0] of x.json, which begins at byte 1: it is not valid JSON"),
        (b'[1, "line\nfeed"]', "element [1] of x.json, which begins at byte 4: it is not valid JSON: invalid control"),
        (b"[1, 'a']", "element [1] of x.json, which begins at byte 4: it is not valid JSON"),
    ],
)
def test_a_broken_document_is_refused_with_the_place(data: bytes, what: str) -> None:
    for block in AWKWARD_SIZES:
        with pytest.raises(InputInvalidError) as caught:
            read(data, block=block)
        assert str(caught.value).startswith("x.json is not a valid JSON document: ")
        assert what in str(caught.value)


def test_a_cut_document_is_refused_wherever_it_is_cut() -> None:
    data = json.dumps(ELEMENTS).encode()
    for end in range(1, len(data)):
        for block in (1, 7, 2**18):
            records = read_json_array(read_of(data[:end]), "x.json", block_bytes=block)
            found, error = until_refused(record.value for record in records)
            assert isinstance(error, InputCutError)
            assert str(error).startswith(f"x.json is cut: it ends at byte {end}, ")
            assert found == ELEMENTS[: len(found)]


def test_records_before_the_break_are_read() -> None:
    found, _ = until_refused(record.value for record in read_json_array(read_of(b"[1, 2, 3 4]"), "x.json"))
    assert found == [1, 2]


def array_of(element: Callable[[int], bytes], length: int) -> Iterator[bytes]:
    yield b"["
    for number in range(length):
        yield element(number) + (b",\n" if number < length - 1 else b"]")


def peak_and_count(pieces: Iterator[bytes], limit: int) -> tuple[int, int]:
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_json_array(endless(pieces), "x.json", limit=limit))
        return tracemalloc.get_traced_memory()[1], count
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_elements() -> None:
    element = json.dumps({"prompt": "x" * 200}).encode()
    small, _ = peak_and_count(array_of(lambda _: element, 1_000), 2**20)
    large, count = peak_and_count(array_of(lambda _: element, 10_000), 2**20)
    assert count == 10_000
    assert large < 1.2 * small


@pytest.mark.parametrize("filler", [b"x", b'\\"', b"[", b"\xf0\x9f\x98\x80"])
def test_an_element_of_any_size_is_skipped_in_little_memory(filler: bytes) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'[1, {"a": "'
        for _ in range(60):
            yield filler * (2**18 // len(filler))
        yield b'"}, 2]'

    peak, count = peak_and_count(pieces(), 2**20)
    assert count == 3
    assert peak < 4 * 2**20


@pytest.mark.parametrize(
    "element",
    [
        b'"' + b"x" * 4_000_000 + b'"',
        b'["' + b'\\"' * 2_000_000 + b'"]',
        b"[" + b"1," * 500_000 + b"1]",
        b'["",' * 200 + b"0" + b"]" * 200,
    ],
    ids=["text", "escapes", "numbers", "brackets"],
)
def test_a_large_element_is_read_in_blocks_of_any_size(element: bytes) -> None:
    for block in (1000, 2**18):
        (record,) = read_json_array(read_of(b"[" + element + b"]"), "x.json", block_bytes=block)
        assert record.error is None
        assert record.size == len(element)
        assert record.value == json.loads(element)


@pytest.mark.parametrize("block", AWKWARD_SIZES)
def test_a_document_that_is_one_object_is_one_record(block: int) -> None:
    data = b'{\n  "prompt": "a",\n  "n": 2\n}\n'
    (record,) = read_json_object(read_of(data), "x.json", 3, block_bytes=block)
    assert (record.index, record.location, record.value) == (3, "the record in x.json", {"prompt": "a", "n": 2})


def test_a_broken_object_is_a_broken_document_and_a_refused_value_is_a_row_error() -> None:
    with pytest.raises(InputInvalidError, match=r"at line 2 of it, column 6\.$"):
        list(read_json_object(read_of(b'{\n"a": nul}'), "x.json"))
    with pytest.raises(InputInvalidError, match="something follows"):
        list(read_json_object(read_of(b'{"a": 1} {}'), "x.json"))
    with pytest.raises(InputCutError):
        list(read_json_object(read_of(b'{\n"a": "1'), "x.json"))
    assert outcomes(read_json_object(read_of(b'{\n"a": NaN}'), "x.json")) == ["! invalid_json"]
    assert outcomes(read_json_object(read_of(b'{\n"a": "12345"}'), "x.json", limit=10)) == ["! record_too_large"]
