"""Every format of an output, with every type that a column may have."""

from __future__ import annotations

import datetime
import decimal
import gc
import io
import json
import zoneinfo
from collections.abc import Callable
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
import pytest

from airflow_llmengine.spec.table import TableFormat
from airflow_llmengine.worker.tables import file_formats
from airflow_llmengine.worker.tables.file_formats import UnwritableTypeError, require_writable, write_file

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=BERLIN)

COLUMNS: dict[str, pyarrow.Array] = {
    "int8": pyarrow.array([1, None], pyarrow.int8()),
    "uint64": pyarrow.array([2**64 - 1, None], pyarrow.uint64()),
    "float": pyarrow.array([0.1, None], pyarrow.float32()),
    "decimal": pyarrow.array([decimal.Decimal("1.20"), None], pyarrow.decimal128(20, 2)),
    "wide": pyarrow.array([decimal.Decimal("9" * 40), None], pyarrow.decimal256(50, 0)),
    "zoned": pyarrow.array([MOMENT, None], pyarrow.timestamp("us", "Europe/Berlin")),
    "nanoseconds": pyarrow.array([1_709_206_215_123_456_789, None], pyarrow.timestamp("ns")),
    "date": pyarrow.array([MOMENT.date(), None]),
    "time": pyarrow.array([MOMENT.time(), None], pyarrow.time64("us")),
    "text": pyarrow.array(['a "b"\n,\x00 {{ x }}', None]),
    "large": pyarrow.array(["ü", None], pyarrow.large_string()),
    "view": pyarrow.array(["ü", None], pyarrow.string_view()),
    "category": pyarrow.array(["ü", None]).dictionary_encode(),
    "nothing": pyarrow.nulls(2),
    "flag": pyarrow.array([True, None]),
}
NO_TEXT: dict[str, pyarrow.Array] = {
    "binary": pyarrow.array([b"\xff\x00", None]),
    "fixed": pyarrow.array([b"\xff\x00", None], pyarrow.binary(2)),
    "list": pyarrow.array([[1, None], None], pyarrow.large_list(pyarrow.int64())),
    "struct": pyarrow.array(
        [{"x": decimal.Decimal("1.5"), "y": [MOMENT]}, None],
        pyarrow.struct([("x", pyarrow.decimal128(5, 1)), ("y", pyarrow.list_(pyarrow.timestamp("us", "UTC")))]),
    ),
    "map": pyarrow.array([[("k", 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int32())),
}


def written(format_: TableFormat, *batches: pyarrow.RecordBatch) -> bytes:
    out = io.BytesIO()
    with write_file(format_, out.write, batches[0].schema) as writer:
        for batch in batches:
            writer.write(batch)
    return out.getvalue()


def batch(columns: dict[str, pyarrow.Array]) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _read_arrow(source: pyarrow.BufferReader) -> pyarrow.Table:
    return pyarrow.ipc.open_file(source).read_all()


READERS: dict[TableFormat, Callable[[pyarrow.BufferReader], Any]] = {
    "parquet": pyarrow.parquet.read_table,
    "arrow": _read_arrow,
}


def test_parquet_and_arrow_keep_every_type_and_all_metadata() -> None:
    rows = batch(COLUMNS | NO_TEXT)
    fields = [
        field.with_metadata({"unit": "m"}).with_nullable(field.name != "int8")
        if field.name in ("int8", "text")
        else field
        for field in rows.schema
    ]
    first = pyarrow.RecordBatch.from_arrays(
        [column.slice(0, 1) for column in rows.columns], schema=pyarrow.schema(fields, metadata={"of": "the table"})
    )
    for format_, read in READERS.items():
        found = read(pyarrow.BufferReader(written(format_, first, first)))
        expected = pyarrow.Table.from_batches([first, first])
        assert found.schema.remove_metadata() == expected.schema.remove_metadata(), format_
        assert found.schema.metadata == expected.schema.metadata
        assert found.schema.field("text").metadata[b"unit"] == b"m"
        assert not found.schema.field("int8").nullable
        assert found.equals(expected), format_


@pytest.mark.parametrize("format_", ["parquet", "arrow", "csv", "tsv", "jsonl"])
def test_a_table_without_rows_has_its_columns(format_: TableFormat) -> None:
    content = written(format_, batch(COLUMNS).slice(0, 0))
    match format_:
        case "parquet":
            assert pyarrow.parquet.read_table(pyarrow.BufferReader(content)).schema.names == list(COLUMNS)
        case "arrow":
            assert _read_arrow(pyarrow.BufferReader(content)).schema.names == list(COLUMNS)
        case "jsonl":
            assert content == b""
        case _:
            assert content.count(b"\n") == 1


def test_dictionaries_that_differ_from_batch_to_batch_are_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_formats, "ROW_GROUP_ROWS", 2)
    kind = pyarrow.dictionary(pyarrow.int8(), pyarrow.string())
    pieces = [["a", "b"], ["c", None], ["b", "a"], ["a", "d"]]
    batches = [batch({"c": pyarrow.array(piece).dictionary_encode().cast(kind)}) for piece in pieces]
    values = ["a", "b", "c", None, "b", "a", "a", "d"]
    for format_, read in READERS.items():
        found: Any = read(pyarrow.BufferReader(written(format_, *batches)))
        assert found["c"].to_pylist() == values
        assert found.schema.field("c").type == kind


def test_parquet_is_cut_into_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_formats, "ROW_GROUP_ROWS", 10)
    rows = batch({"n": pyarrow.array(range(7))})
    file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(written("parquet", rows, rows, rows, rows)))
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [10, 10, 8]
    monkeypatch.setattr(file_formats, "ROW_GROUP_BYTES", 30)
    file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(written("parquet", rows, rows)))
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [7, 7]


def test_csv_reads_back_and_tells_null_from_empty() -> None:
    rows = batch({'a, "b"': pyarrow.array(["", None, 'x,"y"\n']), "n": pyarrow.array([1, None, 3])})
    content = written("csv", rows)
    assert content.decode() == '"a, ""b""","n"\n"",1\n,\n"x,""y""\n",3\n'
    assert written("tsv", rows).startswith(b'"a, ""b"""\t"n"\n""\t1\n')


def test_csv_writes_the_values_of_every_type_of_text() -> None:
    header, line = pyarrow.csv.read_csv(
        pyarrow.BufferReader(written("csv", batch(COLUMNS))),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(COLUMNS, pyarrow.string())),
    ).to_pylist()
    assert header == {
        "int8": "1",
        "uint64": "18446744073709551615",
        "float": "0.1",
        "decimal": "1.20",
        "wide": "9" * 40,
        "zoned": "2024-02-29 12:30:15.123456+0100",
        "nanoseconds": "2024-02-29 11:30:15.123456789",
        "date": "2024-02-29",
        "time": "12:30:15.123456",
        "text": 'a "b"\n,\x00 {{ x }}',
        "large": "ü",
        "view": "ü",
        "category": "ü",
        "nothing": "",
        "flag": "true",
    }
    assert set(line.values()) == {""}


def test_json_lines_write_what_json_has_no_form_for_as_text() -> None:
    lines = written("jsonl", batch(COLUMNS | NO_TEXT)).decode().splitlines()
    first, second = map(json.loads, lines)
    assert first == {
        "int8": 1,
        "uint64": 2**64 - 1,
        "float": 0.1,
        "decimal": "1.20",
        "wide": "9" * 40,
        "zoned": "2024-02-29 12:30:15.123456+0100",
        "nanoseconds": "2024-02-29 11:30:15.123456789",
        "date": "2024-02-29",
        "time": "12:30:15.123456",
        "text": 'a "b"\n,\x00 {{ x }}',
        "large": "ü",
        "view": "ü",
        "category": "ü",
        "nothing": None,
        "flag": True,
        "binary": "/wA=",
        "fixed": "/wA=",
        "list": [1, None],
        "struct": {"x": "1.5", "y": ["2024-02-29 11:30:15.123456Z"]},
        "map": [["k", 1]],
    }
    assert list(first) == list(COLUMNS | NO_TEXT)
    assert set(second.values()) == {None}


def lists_of(levels: int) -> pyarrow.DataType:
    return pyarrow.list_(lists_of(levels - 1)) if levels else pyarrow.int8()


def test_arrow_takes_as_many_levels_as_it_says() -> None:
    rows = batch({"deep": pyarrow.nulls(1, lists_of(63))})
    require_writable("arrow", rows.schema)
    assert _read_arrow(pyarrow.BufferReader(written("arrow", rows))).num_rows == 1


def test_dictionaries_of_times_are_written() -> None:
    column = pyarrow.array([1, 2, 1], pyarrow.timestamp("ns")).dictionary_encode()
    for format_, read in READERS.items():
        require_writable(format_, batch({"at": column}).schema)
        found = read(pyarrow.BufferReader(written(format_, batch({"at": column}))))
        assert found["at"].cast(pyarrow.int64()).to_pylist() == [1, 2, 1]


def test_json_lines_take_a_null_object_whose_fields_are_never_null() -> None:
    kind = pyarrow.struct([pyarrow.field("x", pyarrow.decimal128(3, 1), nullable=False)])
    values = pyarrow.array([{"x": decimal.Decimal("1.5")}, None], kind)
    assert written("jsonl", batch({"a": values})) == b'{"a":{"x":"1.5"}}\n{"a":null}\n'


def test_json_lines_have_no_numbers_that_are_none() -> None:
    values = pyarrow.array([{"x": [1.5, float("nan"), float("inf")]}])
    assert written("jsonl", batch({"a": values})) == b'{"a":{"x":[1.5,null,null]}}\n'


def test_narrow_floats_are_short_in_json_lines_wherever_they_are() -> None:
    narrow = pyarrow.float32()
    kind = pyarrow.struct(
        [("a", narrow), ("b", pyarrow.list_(narrow)), ("c", pyarrow.map_(pyarrow.string(), narrow)), ("d", narrow)]
    )
    values = pyarrow.array([{"a": 0.1, "b": [0.1, None], "c": [("k", 0.1)], "d": float("inf")}, None], kind)
    text = b'{"s":{"a":0.1,"b":[0.1,null],"c":[["k",0.1]],"d":null}}\n{"s":null}\n'
    assert written("jsonl", batch({"s": values})) == text
    assert written("jsonl", batch({"h": pyarrow.array([0.1], pyarrow.float16())})) == b'{"h":0.1}\n'


def test_bytes_that_are_not_utf_8_do_not_end_json_lines() -> None:
    raw = pyarrow.array([b"ok", b"a\xff", None])
    text = pyarrow.Array.from_buffers(pyarrow.string(), 3, raw.buffers())
    columns: dict[str, pyarrow.Array] = {
        "text": text,
        "large": pyarrow.Array.from_buffers(pyarrow.large_string(), 3, raw.cast(pyarrow.large_binary()).buffers()),
        "list": pyarrow.ListArray.from_arrays([0, 1, 3, 3], text),
        "struct": pyarrow.StructArray.from_arrays([text, raw], ["t", "b"]),
        "map": pyarrow.MapArray.from_arrays([0, 1, 2, 2], text.slice(0, 2), text.slice(0, 2)),
        "category": pyarrow.DictionaryArray.from_arrays([0, 1, None], text.slice(0, 2)),
    }
    first, second, third = map(json.loads, written("jsonl", batch(columns)).decode().splitlines())
    assert first == {
        "text": "ok",
        "large": "ok",
        "list": ["ok"],
        "struct": {"t": "ok", "b": "b2s="},
        "map": [["ok", "ok"]],
        "category": "ok",
    }
    assert second == {
        "text": "a\ufffd",
        "large": "a\ufffd",
        "list": ["a\ufffd", None],
        "struct": {"t": "a\ufffd", "b": "Yf8="},
        "map": [["a\ufffd", "a\ufffd"]],
        "category": "a\ufffd",
    }
    assert third == {
        "text": None,
        "large": None,
        "list": [],
        "struct": {"t": None, "b": None},
        "map": [],
        "category": None,
    }


@pytest.mark.parametrize("format_", ["csv", "tsv"])
@pytest.mark.parametrize("name", list(NO_TEXT))
def test_what_csv_can_not_hold_is_refused(format_: TableFormat, name: str) -> None:
    with pytest.raises(
        UnwritableTypeError, match=f"the column '{name}' is of type .*, which can't be written as {format_}"
    ):
        require_writable(format_, batch({"n": COLUMNS["int8"], name: NO_TEXT[name]}).schema)


@pytest.mark.parametrize(
    ("format_", "kind"),
    [
        ("parquet", pyarrow.struct([])),
        ("parquet", pyarrow.sparse_union([pyarrow.field("a", pyarrow.int8())])),
        ("arrow", pyarrow.list_(pyarrow.dictionary(pyarrow.int8(), pyarrow.string()))),
        ("jsonl", pyarrow.sparse_union([pyarrow.field("a", pyarrow.int8())])),
        ("csv", pyarrow.month_day_nano_interval()),
        ("csv", pyarrow.dictionary(pyarrow.int8(), pyarrow.binary())),
        ("parquet", pyarrow.dictionary(pyarrow.int8(), pyarrow.list_(pyarrow.int8()))),
        ("arrow", pyarrow.dictionary(pyarrow.int8(), pyarrow.list_(pyarrow.int8()))),
        ("arrow", lists_of(64)),
        ("parquet", pyarrow.decimal128(5, -2)),
        ("parquet", pyarrow.binary(0)),
        ("jsonl", pyarrow.struct([("a", pyarrow.int8()), ("a", pyarrow.int16())])),
        ("jsonl", pyarrow.list_(pyarrow.struct([("a", pyarrow.int8()), ("a", pyarrow.int16())]))),
    ],
)
def test_types_without_a_form_are_refused(format_: TableFormat, kind: pyarrow.DataType) -> None:
    with pytest.raises(UnwritableTypeError, match="the column 'odd' is of type"):
        require_writable(format_, pyarrow.schema([pyarrow.field("odd", kind)]))


@pytest.mark.parametrize("format_", ["parquet", "arrow", "jsonl"])
def test_every_other_type_is_taken(format_: TableFormat) -> None:
    require_writable(format_, batch(COLUMNS | NO_TEXT).schema)
    item = pyarrow.field("item", pyarrow.int8(), nullable=False)
    kinds = [pyarrow.list_(item), pyarrow.struct([item]), pyarrow.list_(item, 2), pyarrow.int8()]
    for kind in kinds:
        require_writable(format_, pyarrow.schema([pyarrow.field("n", kind, nullable=False)]))


@pytest.mark.parametrize("format_", ["parquet", "arrow", "csv", "jsonl"])
def test_what_it_is_written_to_may_fail(format_: TableFormat) -> None:
    class DiskFullError(Exception):
        pass

    pieces: list[bytes] = []

    def take(data: bytes) -> None:
        pieces.append(data)
        if sum(map(len, pieces)) > 2000:
            raise DiskFullError

    def write() -> None:
        with write_file(format_, take, batch(COLUMNS).schema) as writer:
            for _ in range(100):
                writer.write(batch(COLUMNS))

    with pytest.raises(DiskFullError):
        write()


@pytest.mark.parametrize("format_", ["parquet", "arrow", "csv", "jsonl"])
def test_a_file_that_is_given_up_is_not_ended_by_the_garbage_collector(format_: TableFormat) -> None:
    pieces: list[bytes] = []
    taken = 0

    def write_half() -> None:
        nonlocal taken
        with write_file(format_, pieces.append, batch(COLUMNS).schema) as writer:
            writer.write(batch(COLUMNS))
            taken = len(pieces)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    gc.collect()
    assert len(pieces) == taken
