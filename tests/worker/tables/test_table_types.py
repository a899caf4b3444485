"""A whole job on every type of column, on tables without rows, and on names and cells that are hard to carry."""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from tests.worker.tables.table_inputs import prompts
from tests.worker.tables.table_jobs import PROMPT, TableJob

MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=datetime.UTC)
NANOSECONDS = 1_709_251_199_999_999_999
PRICE = pyarrow.struct([("amount", pyarrow.decimal128(9, 2)), ("currency", pyarrow.string())])
STAY = pyarrow.struct([("from", pyarrow.timestamp("us", "Europe/Berlin")), ("prices", pyarrow.list_(PRICE))])
CATEGORIES = ["ü", "a", None, "a", "{{ x }}"]


def of(kind: pyarrow.DataType, *values: Any) -> pyarrow.Array:
    """Five cells: these, and nulls after them."""
    return pyarrow.array([*values, *[None] * (5 - len(values))], kind)


COLUMNS: dict[str, pyarrow.Array] = {
    "decimal": of(pyarrow.decimal128(38, 10), Decimal("1.10"), Decimal(10) ** 27, Decimal("-0.0000000001")),
    "wide": of(pyarrow.decimal256(76, 20), Decimal("9" * 56), Decimal("1e-20")),
    "zone": of(pyarrow.timestamp("us", "Europe/Berlin"), MOMENT, MOMENT.replace(year=1900, day=28)),
    "offset": of(pyarrow.timestamp("ms", "+05:30"), MOMENT.replace(microsecond=0)),
    "nanoseconds": of(pyarrow.timestamp("ns", "UTC"), NANOSECONDS, -1),
    "local": of(pyarrow.timestamp("us"), MOMENT.replace(tzinfo=None)),
    "date": of(pyarrow.date32(), MOMENT.date(), datetime.date(1, 1, 1)),
    "time": of(pyarrow.time64("ns"), NANOSECONDS % 10**9),
    "unsigned": of(pyarrow.uint64(), 2**64 - 1, 0),
    "small": of(pyarrow.int8(), -128, 127),
    "half": of(pyarrow.float16(), 0.5),
    "float": of(pyarrow.float32(), 0.1, float("inf"), -0.0),
    "list": of(pyarrow.list_(pyarrow.list_(pyarrow.int16())), [[1, None], None, []], []),
    "fixed list": of(pyarrow.list_(pyarrow.float32(), 2), [0.5, 1.5]),
    "fixed list of times": of(pyarrow.list_(pyarrow.timestamp("ns"), 1), [NANOSECONDS]),
    "struct": of(STAY, {"from": MOMENT, "prices": [{"amount": Decimal("1.50"), "currency": None}, None]}, {}),
    "map": of(pyarrow.map_(pyarrow.string(), pyarrow.int32()), [("k", 1), ("l", None)], []),
    "category": pyarrow.array(CATEGORIES).dictionary_encode(),
    "large": of(pyarrow.large_string(), "ü" * 1000, ""),
    "large list": of(pyarrow.large_list(pyarrow.string()), ["x", None]),
    "binary": of(pyarrow.binary(), b"\xff\x00", b""),
    "large binary": of(pyarrow.large_binary(), b"\xff\x00" * 1000),
    "fixed": of(pyarrow.binary(3), b"\xff\x00\x01"),
    "id": pyarrow.ExtensionArray.from_storage(pyarrow.uuid(), of(pyarrow.binary(16), UUID(int=1).bytes)),
    "all null": of(pyarrow.int64()),
    "no type": pyarrow.nulls(5),
    "flag": of(pyarrow.bool_(), True, False),
    "text": pyarrow.array(["a", "b", "c", "d", "e"]),
}


def write_stream(table: pyarrow.Table, path: Path) -> None:
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_grouped(table: pyarrow.Table, path: Path) -> None:
    pyarrow.parquet.write_table(table, path, row_group_size=2)


TYPED: Mapping[str, tuple[Callable[[pyarrow.Table, Path], None], Callable[[Path], pyarrow.Table]]] = {
    "parquet": (write_grouped, lambda path: pyarrow.parquet.ParquetFile(path).read()),
    "feather": (pyarrow.feather.write_feather, pyarrow.feather.read_table),
    "arrow": (write_stream, pyarrow.feather.read_table),
}


def same(found: pyarrow.Table, before: pyarrow.Table) -> bool:
    """Whether types, metadata and cells are, whatever the pieces are in which they are stored."""
    return bool(found.equals(before) and found.schema.metadata == before.schema.metadata)


@pytest.mark.parametrize(
    ("given", "made"), [("parquet", "parquet"), ("parquet", "arrow"), ("feather", "parquet"), ("arrow", "feather")]
)
def test_cells_of_every_type_are_the_same_in_the_output(tmp_path: Path, given: str, made: str) -> None:
    write, read = TYPED[given][0], TYPED[made][1]
    table = pyarrow.table(COLUMNS).replace_schema_metadata({"kept": "along"})
    write(table, tmp_path / f"in.{given}")
    manifest = TableJob(tmp_path / f"in.{given}", tmp_path / f"out.{made}", PROMPT).done(chunk_records=3)
    assert manifest.succeeded == 5
    found = read(tmp_path / f"out.{made}")
    assert found.schema.names == [*COLUMNS, "completion"]
    assert [found[name].type for name in COLUMNS] == [column.type for column in COLUMNS.values()]
    assert same(found.drop_columns("completion"), table)
    assert found["completion"].to_pylist() == COLUMNS["text"].to_pylist()


WRITTEN: Mapping[str, list[str]] = {
    "decimal": ["1.1000000000", "1000000000000000000000000000.0000000000", "-0.0000000001"],
    "wide": ["9" * 56 + "." + "0" * 20, "0.00000000000000000001"],
    "zone": ["2024-03-01 00:59:59.999999+01:00", "1900-03-01 00:59:59.999999+01:00"],
    "offset": ["2024-03-01 05:29:59+05:30"],
    "nanoseconds": ["2024-02-29 23:59:59.999999+00:00", "1969-12-31 23:59:59.999999+00:00"],
    "local": ["2024-02-29 23:59:59.999999"],
    "date": ["2024-02-29", "0001-01-01"],
    "time": ["00:00:00.999999"],
    "unsigned": ["18446744073709551615", "0"],
    "small": ["-128", "127"],
    "half": ["0.5"],
    "float": ["0.1", "inf", "-0.0"],
    "list": ["[[1, null], null, []]", "[]"],
    "fixed list": ["[0.5, 1.5]"],
    "fixed list of times": ['["2024-02-29 23:59:59.999999"]'],
    "struct": [
        '{"from": "2024-03-01 00:59:59.999999+01:00", "prices": [{"amount": "1.50", "currency": null}, null]}',
        '{"from": null, "prices": null}',
    ],
    "map": ['{"k": 1, "l": null}', "{}"],
    "large": ["ü" * 1000, ""],
    "large list": ['["x", null]'],
    "id": ["00000000-0000-0000-0000-000000000001"],
    "all null": [],
    "no type": [],
    "flag": ["true", "false"],
}
"""What a prompt has of the cells of ``COLUMNS``; those of bytes have no text."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_cell_of_every_type_but_bytes_can_be_asked_about(tmp_path: Path, name: str) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"cell": COLUMNS[name]}), tmp_path / "in.parquet")
    found = prompts(tmp_path / "in.parquet", "{{ cell }}", on_null="skip")
    assert found == [*WRITTEN[name], *[None] * COLUMNS[name].null_count]


@pytest.mark.parametrize("made", ["parquet", "feather"])
def test_categories_of_several_files_are_one_column(tmp_path: Path, made: str) -> None:
    kind = pyarrow.dictionary(pyarrow.int8(), pyarrow.string())
    expected = []
    for name in "abc":
        values = [f"{name}{number}" for number in range(100)]
        (tmp_path / "in").mkdir(exist_ok=True)
        column = pyarrow.array(values).dictionary_encode().cast(kind)
        write_grouped(pyarrow.table({"text": column}), tmp_path / f"in/{name}.parquet")
        expected += values
    TableJob(tmp_path / "in", tmp_path / f"out.{made}", PROMPT).done()
    assert TYPED[made][1](tmp_path / f"out.{made}").to_pydict() == {"text": expected, "completion": expected}


EMPTY_GROUPS: Mapping[str, list[int]] = {"no groups": [], "one empty": [0], "empty ones between": [2, 0, 0, 3, 0]}


@pytest.mark.parametrize("groups", EMPTY_GROUPS)
def test_row_groups_without_rows_are_none(tmp_path: Path, groups: str) -> None:
    table = pyarrow.table(COLUMNS)
    start = 0
    with pyarrow.parquet.ParquetWriter(tmp_path / "in.parquet", table.schema) as writer:
        for rows in EMPTY_GROUPS[groups]:
            writer.write_table(table.slice(start, rows))
            start += rows
    # A table of no rows is written as one empty group.
    before = pyarrow.parquet.ParquetFile(tmp_path / "in.parquet")
    assert before.num_row_groups == len(EMPTY_GROUPS[groups])
    manifest = TableJob(tmp_path / "in.parquet", tmp_path / "out.parquet", PROMPT).done(chunk_records=2)
    assert (manifest.records, manifest.succeeded) == (start, start)
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert same(found.drop_columns("completion"), before.read())
    assert found["completion"].to_pylist() == COLUMNS["text"].to_pylist()[:start]


NAMES = ("a b", "a.b", ".", "a", 'say "hi"', "it's", "😀", "größe", "row", "class", "a/b", "a,b\tc", "{{ a }}", "[0]")
NAMED = {name: f"cell of {place}" for place, name in enumerate(NAMES)}


def write_lines(path: Path, cells: Mapping[str, str]) -> None:
    path.write_text(json.dumps(cells) + "\n")


def write_delimited(path: Path, cells: Mapping[str, str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([cells.keys(), cells.values()])


def write_typed(path: Path, cells: Mapping[str, str]) -> None:
    table = pyarrow.table({name: [cell] for name, cell in cells.items()})
    (pyarrow.parquet.write_table if path.suffix == ".parquet" else pyarrow.feather.write_feather)(table, path)


WRITERS: Mapping[str, Callable[[Path, Mapping[str, str]], None]] = {
    "parquet": write_typed,
    "arrow": write_typed,
    "csv": write_delimited,
    "tsv": write_delimited,
    "jsonl": write_lines,
}


def read_cells(path: Path) -> dict[str, Any]:
    """The one row of a table in any format."""
    match path.suffix:
        case ".jsonl":
            row: dict[str, Any] = json.loads(path.read_text())
            return row
        case ".csv" | ".tsv":
            with path.open(newline="", encoding="utf-8") as file:
                (row,) = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            return row
        case ".parquet":
            return dict(pyarrow.parquet.ParquetFile(path).read().to_pylist()[0])
    return dict(pyarrow.feather.read_table(path).to_pylist()[0])


@pytest.mark.parametrize(("given", "made"), list(pairwise([*WRITERS, "parquet"])))
def test_columns_of_any_name_are_asked_about_kept_and_named_as_they_were(tmp_path: Path, given: str, made: str) -> None:
    WRITERS[given](tmp_path / f"in.{given}", NAMED)
    prompt = "|".join(f"{{{{ row[{json.dumps(name, ensure_ascii=False)}] }}}}" for name in NAMES)
    table = {**PROMPT, "prompt": prompt, "completion_column": "an answer. 😀"}
    TableJob(tmp_path / f"in.{given}", tmp_path / f"out.{made}", table).done()
    found = read_cells(tmp_path / f"out.{made}")
    assert found.pop("an answer. 😀") == "|".join(NAMED.values())
    assert list(found.items()) == list(NAMED.items())


def test_a_column_that_is_spelt_like_a_field_of_a_struct_is_not_that_field(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {"a": [{"b": "of the struct", "c": "beside it"}], "a.b": ["the column"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    for kept in (None, ["a"], ["a.b"]):
        table = {**PROMPT, "prompt": '{{ a.b }}|{{ row["a.b"] }}|{{ a.c }}', "columns": kept}
        TableJob(tmp_path / "in.parquet", tmp_path / "out.parquet", table).done()
        (found,) = pyarrow.parquet.ParquetFile(tmp_path / "out.parquet").read().to_pylist()
        assert found.pop("completion") == "of the struct|the column|beside it"
        assert found == {name: columns[name][0] for name in kept or columns}


CELLS = ("{{ text }}{% raw %}{# #}", "\x00 in the \x00 middle\x00", "\r\n,\t\"'\\", "<&>", "\u2028\u200d😀", " ")


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
def test_cells_of_any_text_reach_the_model_and_the_output_letter_for_letter(tmp_path: Path, ending: str) -> None:
    columns = {"text": list(CELLS)}
    if ending == "jsonl":
        (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": cell}) + "\n" for cell in CELLS))
    else:
        TYPED[ending][0](pyarrow.table(columns), tmp_path / f"in.{ending}")
    for output in ("parquet", "jsonl"):
        TableJob(tmp_path / f"in.{ending}", tmp_path / f"out.{output}", PROMPT).done()
    expected = [{"text": cell, "completion": cell} for cell in CELLS]
    assert pyarrow.parquet.ParquetFile(tmp_path / "out.parquet").read().to_pylist() == expected
    # A line of JSON has a line feed at its end alone.
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().split("\n")[:-1]] == expected


def test_half_a_surrogate_pair_is_its_rows_error_and_nobody_elses(tmp_path: Path) -> None:
    lines = [r'{"text": "a", "n": 1}', r'{"text": "\ud83d", "n": 2}', r'{"text": "\ud83d\ude00", "n": 3}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    table = {**PROMPT, "error_column": "error"}
    manifest = TableJob(tmp_path / "in.jsonl", tmp_path / "out.parquet", table).done()
    assert (manifest.succeeded, manifest.failures) == (2, {"invalid_unicode": 1})
    first, broken, whole = pyarrow.parquet.ParquetFile(tmp_path / "out.parquet").read().to_pylist()
    assert first == {"text": "a", "n": 1, "completion": "a", "error": None}
    assert broken == {"text": None, "n": 2, "completion": None, "error": broken["error"]}
    assert broken["error"].startswith("invalid_unicode: row 2 of in.jsonl: ")
    assert whole == {"text": "😀", "n": 3, "completion": "😀", "error": None}
