"""Rows that become records: which files, which columns, and what becomes of a row that has no value."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.readers import InputChangedError, InputInvalidError
from airflow_llmengine.worker.tables.arrow_files import MOST_ROWS
from airflow_llmengine.worker.tables.row_files import BATCH_BYTES, MOST_BATCH_ROWS, Row
from tests.worker.tables.table_inputs import opened, prompts, raw_records, validated
from tests.worker.tables.table_jobs import write_parquet


def write_arrow(path: Path, columns: dict[str, Any]) -> None:
    table = pyarrow.table(columns)
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_stream(path: Path, columns: dict[str, Any]) -> None:
    table = pyarrow.table(columns)
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_feather(path: Path, columns: dict[str, Any]) -> None:
    pyarrow.feather.write_feather(pyarrow.table(columns), path, compression="zstd")


def write_lines(path: Path, columns: dict[str, Any]) -> None:
    rows = pyarrow.table(columns).to_pylist()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_csv(path: Path, columns: dict[str, Any], delimiter: str = ",") -> None:
    rows = pyarrow.table(columns).to_pylist()
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_tsv(path: Path, columns: dict[str, Any]) -> None:
    write_csv(path, columns, "\t")


FORMATS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    "rows.parquet": write_parquet,
    "rows.arrow": write_arrow,
    "rows.arrows": write_stream,
    "rows.feather": write_feather,
    "rows.jsonl": write_lines,
    "rows.csv": write_csv,
    "rows.tsv": write_tsv,
}

COLUMNS = {
    "text": ["one", None, 'with ,\t"quotes"\nand lines', "{{ text }}", " ü🎈 "],
    "stars": [1, 2, None, 4, 5],
    'odd "name".': list("abcde"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_every_format_are_the_same_records(tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / name, COLUMNS)
    reader = opened(
        tmp_path / name,
        {"prompt": "{{ text }}|{{ row['odd \"name\".'] }}", "parameter_columns": {"max_tokens": "stars"}},
    )
    records = list(reader.records())
    assert [record.location for record in records] == [f"row {number} of {name}" for number in range(1, 6)]
    assert [record.index for record in records] == list(range(5))
    assert records[0].value == {"prompt": "one|a", "max_tokens": records[0].value["max_tokens"]}
    assert validated(records[0]).max_tokens == 1
    assert records[1].error is not None
    assert records[1].error.type is RecordErrorType.INVALID_RECORD
    told = "the column 'text', which a template uses, is null; give table.on_null skip or empty, or fill it in"
    assert records[1].error.message == f"row 2 of {name}: {told}"
    assert [record.value["prompt"] for record in records[2:]] == [
        'with ,\t"quotes"\nand lines|c',
        "{{ text }}|d",
        " ü🎈 |e",
    ]
    # Where a row has no value of its own, that of all rows stands.
    assert [validated(record).max_tokens for record in records[2:]] == [16, 4, 5]


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_without_rows_is_an_input_without_records(tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / name, {"text": pyarrow.array([], pyarrow.string())})
    if name == "rows.jsonl":
        # Nothing tells what columns there would be.
        with pytest.raises(InputInvalidError, match=r"no column of the input; it has none\."):
            opened(tmp_path / name)
    else:
        assert raw_records(tmp_path / name) == []


def test_a_schema_alone_is_a_table_without_rows(tmp_path: Path) -> None:
    schema = pyarrow.schema([("text", pyarrow.string())])
    with pyarrow.parquet.ParquetWriter(tmp_path / "t.parquet", schema):
        pass
    assert pyarrow.parquet.ParquetFile(tmp_path / "t.parquet").num_row_groups == 0
    assert raw_records(tmp_path / "t.parquet") == []


@pytest.mark.parametrize(
    ("on_null", "expected"),
    [
        (
            "error",
            [
                "<a>",
                "row 2 of t.parquet: the column 'text'",
                "row 3 of t.parquet: the column 'number'",
                "row 4 of t.parquet: the column 'when'",
            ],
        ),
        ("skip", ["<a>", None, None, None]),
        ("empty", ["<a>", "<>", "<a>", "<a>"]),
    ],
)
def test_a_row_without_a_value_follows_on_null(tmp_path: Path, on_null: str, expected: list[str | None]) -> None:
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    write_parquet(
        tmp_path / "t.parquet",
        {
            "text": ["a", None, "a", "a"],
            "number": [1.5, 1.5, float("nan"), 1.5],
            "when": pyarrow.array([moment, moment, moment, None], pyarrow.timestamp("ns", "UTC")),
            "unused": pyarrow.nulls(4),
        },
    )
    made = prompts(tmp_path / "t.parquet", "<{{ text }}>{% if number and when %}{% endif %}", on_null=on_null)
    assert len(made) == 4
    for found, start in zip(made, expected, strict=True):
        assert found is None if start is None else found is not None and found.startswith(start)


def test_an_empty_text_in_place_of_a_null_is_one(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": [None, "a"]})
    assert prompts(tmp_path / "t.parquet", "{{ text == '' }}{{ text is string }}", on_null="empty") == [
        "truetrue",
        "falsetrue",
    ]


@pytest.mark.parametrize("on_null", ["error", "skip", "empty"])
def test_the_words_none_and_nan_never_reach_the_model(tmp_path: Path, on_null: str) -> None:
    nothing = [None, float("nan")]
    write_parquet(
        tmp_path / "t.parquet",
        {
            "a": nothing,
            "b": pyarrow.array([None, Decimal("1.1")], pyarrow.decimal128(4, 2)),
            "s": [{"x": None, "y": [None, "y"]}, None],
        },
    )
    for template in (
        "{{ a }}{{ b }}",
        "{{ a|string|upper }}",
        "{{ s.x }}",
        "{{ s.x ~ s.y|join(',') }}",
        "{{ s }}",
        "{{ row }}",
        "{% for n in row %}{{ row[n] }}{% endfor %}",
        "{% for n in row %}{{ row[n] ~ '' }}{% endfor %}",
        "{{ a|round }}",
    ):
        for made in prompts(tmp_path / "t.parquet", template, on_null=on_null):
            if made is not None and not made.startswith("row "):
                assert "none" not in made.lower()
                assert "nan" not in made.lower()


def test_only_the_columns_that_are_used_are_asked_for(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"blob": [b"\xff"], "text": ["a"], "n": [3], "when": ["x"]})
    reader = opened(tmp_path / "t.parquet", {"parameter_columns": {"seed": "n"}})
    assert reader._records.columns == ["text", "n"]
    assert [record.value["prompt"] for record in reader.records()] == ["a"]


def test_a_row_becomes_a_chat(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"who": ["Ada"], "text": ["hello"]})
    messages = [
        {"role": "system", "content": "You are {{ who }}."},
        {"role": "user", "content": "{{ text }}"},
    ]
    [record] = raw_records(
        tmp_path / "t.parquet", {"messages": messages, "parameters": {"temperature": 0, "seed": None}}
    )
    assert record.value == {
        "messages": [{"role": "system", "content": "You are Ada."}, {"role": "user", "content": "hello"}],
        "temperature": 0,
    }
    assert record.size == len("You are Ada.hello")


def test_the_output_schema_is_asked_of_every_record(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": ["a"]})
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    [record] = raw_records(tmp_path / "t.parquet", {"output_schema": schema})
    form = validated(record).response_format.json_schema
    assert form.schema_ == {**schema, "additionalProperties": False}


def test_parameters_of_each_row(tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "t.parquet",
        {
            "text": ["a", "b", "c", "d"],
            "warm": pyarrow.array([Decimal("0.5"), None, Decimal("9.0"), Decimal("1.0")], pyarrow.decimal128(3, 1)),
            "choices": [["x", "y"], None, ["x"], []],
            "top": pyarrow.array([0.9, float("nan"), 1.0, 1.0], pyarrow.float32()),
        },
    )
    table = {"parameter_columns": {"temperature": "warm", "guided_choice": "choices", "top_p": "top"}}
    first, second, third, fourth = map(validated, raw_records(tmp_path / "t.parquet", table))
    assert (first.temperature, first.guided_choice, first.top_p) == (0.5, ["x", "y"], 0.9)
    assert second.model_fields_set == {"prompt", "max_tokens"}
    assert third == "row 3 of t.parquet: temperature: must be a number from 0 to 2, not 9"
    assert fourth.startswith("row 4 of t.parquet: guided_choice")


def test_parameters_of_a_column_of_text_are_what_it_spells(tmp_path: Path) -> None:
    rows = ["text,heat,budget,stop,form", 'a,0.50,7,5,"{""type"": ""json_object""}"', "b,warm,1e1,null,", "c,,, x ,"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    columns = {"temperature": "heat", "max_tokens": "budget", "stop": "stop", "response_format": "form"}
    first, second, third = map(validated, raw_records(tmp_path / "t.csv", {"parameter_columns": columns}))
    assert (first.temperature, first.max_tokens, first.stop, first.response_format.type) == (0.5, 7, "5", "json_object")
    assert second == "row 2 of t.csv: temperature: must be a number from 0 to 2, not a string"
    assert (third.temperature, third.max_tokens, third.stop) == (1, 16, " x ")


def test_a_row_on_which_its_template_fails_is_that_rows_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": ["1", "secret", ""]})
    made = prompts(tmp_path / "t.parquet", "{{ 10 // (text|int(-1) + 1) }}")
    assert made == [
        "5",
        "row 2 of t.parquet: table.prompt (line 1) fails on it (ZeroDivisionError)",
        "row 3 of t.parquet: table.prompt (line 1) fails on it (ZeroDivisionError)",
    ]


def test_an_empty_prompt_is_its_rows_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": [""]})
    [record] = raw_records(tmp_path / "t.parquet")
    assert validated(record) == "row 1 of t.parquet: prompt: is empty"


def test_a_prompt_that_is_too_large_is_its_rows_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": ["x" * 2**20, "y"]})
    large, small = raw_records(tmp_path / "t.parquet", {"prompt": "{{ text * 65 if text|length > 1 else text }}"})
    assert large.error is not None
    assert large.error.type is RecordErrorType.RECORD_TOO_LARGE
    assert small.value["prompt"] == "y"


def test_text_of_a_file_that_is_not_utf_8_is_its_rows_error(tmp_path: Path) -> None:
    raw = pyarrow.array([b"fine", b"\xff\xfe", b"fine too"])
    text = pyarrow.Array.from_buffers(pyarrow.string(), 3, raw.buffers())
    write_parquet(tmp_path / "t.parquet", {"text": text})
    (tmp_path / "t.csv").write_bytes(b"text,more\nfine,1\n\xff\xfe,2\nfine too,\xc3\xa4\n")
    (tmp_path / "t.jsonl").write_bytes(b'{"text":"fine"}\n{"text":"\xff\xfe"}\n{"text":"fine too"}\n')
    for name in ("t.parquet", "t.csv", "t.jsonl"):
        first, second, third = raw_records(tmp_path / name)
        assert (first.value["prompt"], third.value["prompt"]) == ("fine", "fine too")
        assert second.error is not None
        assert second.error.type is RecordErrorType.INVALID_UNICODE
        assert second.error.message.startswith(f"row 2 of {name}: ")


def test_a_line_of_json_that_is_no_row_is_its_rows_error(tmp_path: Path) -> None:
    lines = [
        '{"text": "a\\u0000b"}',
        '{"text": "\\ud800"}',
        "",
        "[1]",
        '{"text"',
        '{"other": 1}',
        '{"text": "{{ x }}", "n": 1.5}',
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    made = prompts(tmp_path / "t.jsonl", "{{ text }}")
    assert (made[0], made[5]) == ("a\0b", "{{ x }}")
    assert [str(message).partition(":")[0] for message in made[1:5]] == [
        f"row {number} of t.jsonl" for number in range(2, 6)
    ]
    reader = opened(tmp_path / "t.jsonl")
    assert reader.schema == pyarrow.schema(
        [("text", pyarrow.string()), ("other", pyarrow.int64()), ("n", pyarrow.float64())]
    )
    [batch] = reader.files[0].batches(["n", "text"])
    assert batch.to_pydict() == {"n": [None] * 5 + [1.5], "text": ["a\0b", *[None] * 4, "{{ x }}"]}


def test_types_of_json_lines_widen_over_the_whole_file(tmp_path: Path) -> None:
    rows = [{"a": None, "s": {"x": 1}}, {"a": [1]}] * 2500 + [{"s": {"y": "z"}}, {"a": [None, 2.5]}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    reader = opened(tmp_path / "t.jsonl", {"prompt": "{{ row }}"})
    assert reader.schema.field("a").type == pyarrow.list_(pyarrow.float64())
    assert reader.schema.field("s").type == pyarrow.struct([("x", pyarrow.int64()), ("y", pyarrow.string())])


@pytest.mark.parametrize("values", [[1, "a"], [True, "a"], [[1], {"a": 1}], [2**64, 1], [{"x": 1}, {"x": "a"}]])
def test_json_lines_of_mixed_types_are_refused_by_name(tmp_path: Path, values: list[Any]) -> None:
    for together in (0, 5000):
        rows = [{"text": "a", "v": values[0]}] * (1 + together) + [{"text": "a", "v": values[1]}]
        (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(InputInvalidError, match=r"t\.jsonl: the column 'v' holds values of types"):
            opened(tmp_path / "t.jsonl")


@pytest.mark.parametrize("large", [2**63, 2**53 + 1])
def test_numbers_that_no_common_type_holds_are_refused_at_once(tmp_path: Path, large: int) -> None:
    few: list[dict[str, Any]] = [{"text": "a", "v": -1 if large == 2**63 else 1.5}]
    many = [{"text": "a", "v": large}]
    for name, rows in {"alone/one": few * MOST_BATCH_ROWS + many, "both/first": few, "both/second": many}.items():
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(map(json.dumps, rows)))
    for folder, file in (("alone", "one"), ("both", "second")):
        with pytest.raises(InputInvalidError, match=rf"{file}\.jsonl: the column 'v' holds values of types"):
            opened(tmp_path / folder)


def test_cells_that_stand_in_a_broken_line_are_kept(tmp_path: Path) -> None:
    lines = [
        r'{"id": 1, "text": "a", "n": 1.5}',
        r'{"id": 2, "text": "\ud83d", "n": 3}',
        r'{"id": "three", "text": "cut',
        r'{"id": 4, "text": ["no text"], "n": NaN}',
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    reader = opened(tmp_path / "t.jsonl")
    # They don't tell what the columns are, and one that does not fit is null.
    assert reader.schema == pyarrow.schema(
        [("id", pyarrow.int64()), ("text", pyarrow.string()), ("n", pyarrow.float64())]
    )
    [batch] = reader.files[0].batches(reader.schema.names)
    assert batch.to_pydict() == {"id": [1, 2, None, 4], "text": ["a", None, None, None], "n": [1.5, 3, None, None]}
    assert [record.error is None for record in reader.records()] == [True, False, False, False]


def test_of_a_row_of_csv_with_a_cell_that_is_not_utf_8_the_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,text,n\n1,a,\n2,\xff,\n")
    reader = opened(tmp_path / "t.csv")
    [batch] = reader.files[0].batches(reader.schema.names)
    assert batch.to_pydict() == {"id": ["1", "2"], "text": ["a", None], "n": [None, None]}
    assert [record.error is None for record in reader.records()] == [True, False]


def test_cells_of_csv_are_text_as_it_stands_there(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('\ufeffzip,price,text\n00501,1.10,"a\r\n""b"""\n\n,NA,null\n', newline="")
    made = prompts(tmp_path / "t.csv", "{{ zip }}|{{ price }}|{{ text }}", on_null="empty")
    assert made == ['00501|1.10|a\r\n"b"', "|NA|null"]
    reader = opened(tmp_path / "t.csv")
    assert set(reader.schema.types) == {pyarrow.string()}


def test_a_row_of_csv_with_other_cells_than_the_header_is_its_rows_error(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,b\na,1\nsecret\nx,y,z\nc,2\n")
    made = prompts(tmp_path / "t.csv", "{{ text }}")
    assert made == [
        "a",
        "row 2 of t.csv: it has 1 cells, and the header has 2",
        "row 3 of t.csv: it has 3 cells, and the header has 2",
        "c",
    ]
    [batch] = opened(tmp_path / "t.csv").files[0].batches(["b"])
    assert batch.to_pydict() == {"b": ["1", None, None, "2"]}


def test_a_quote_that_is_not_closed_is_told_by_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_llmengine.worker.tables.text_files.MAX_RECORD_BYTES", 1000)
    (tmp_path / "t.csv").write_text('text\na\n"' + "b\n" * 2000)
    reader = opened(tmp_path / "t.csv")
    with pytest.raises(InputInvalidError, match=r"t\.csv can't be read on from line \d+ .*a quote that is not closed"):
        list(reader.records())


@given(rows=st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=2), min_size=1))
def test_what_python_writes_as_csv_is_read_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(["text", "other"])
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode()))
    made = [
        row.cells if isinstance(row, Row) else row
        for row in opened(path, {"input_format": "csv"}).files[0].rows(["text", "other"])
    ]
    assert made == [{"text": one or None, "other": two or None} for one, two in rows]


def test_a_compressed_text_file_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"text\na\n"))
    assert prompts(tmp_path / "t.csv.gz", "{{ text }}") == ["a"]


def test_files_of_a_folder_are_one_table_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in/b.parquet", {"text": ["3"], "more": [1]})
    write_parquet(tmp_path / "in/a.parquet", {"text": ["1", "2"]})
    write_parquet(tmp_path / "in/c/d.parquet", {"more": [2], "text": ["4"]})
    (tmp_path / "in/_SUCCESS").write_text("")
    records = raw_records(tmp_path / "in")
    assert [record.value["prompt"] for record in records] == list("1234")
    assert [record.location for record in records] == [
        "row 1 of a.parquet",
        "row 2 of a.parquet",
        "row 1 of b.parquet",
        "row 1 of c/d.parquet",
    ]
    # A column that a file has not is null in its rows.
    reader = opened(tmp_path / "in")
    assert reader.schema.names == ["text", "more"]
    batches = [batch for file in reader.files for batch in file.batches(["more", "text"])]
    assert pyarrow.Table.from_batches(batches).to_pydict() == {"more": [None, None, 1, 2], "text": ["1", "2", "3", "4"]}
    assert [record.value["prompt"] for record in raw_records(tmp_path / "in/*.parquet")] == list("123")


def test_partitions_are_columns(tmp_path: Path) -> None:
    for folder in (
        "day=2024-05-01/region=EU",
        "day=2024-05-01/region=__HIVE_DEFAULT_PARTITION__",
        "day=2024-05-02/region=a%2Fb%20c",
    ):
        write_parquet(tmp_path / "in" / folder / "part-0.parquet", {"text": ["a"]})
    made = prompts(tmp_path / "in", "{{ text }} {{ day }} {{ region }}", partitioning="hive", on_null="skip")
    assert made == ["a 2024-05-01 EU", None, "a 2024-05-02 a/b c"]
    reader = opened(tmp_path / "in", {"partitioning": "hive"})
    assert reader.schema.names == ["text", "day", "region"]
    assert reader.partition_columns == ["day", "region"]
    [batch] = reader.files[1].batches(["region", "text"])
    assert batch.to_pylist() == [{"region": None, "text": "a"}]
    assert [file.name for file in reader.files][2] == "day=2024-05-02/region=a%2Fb%20c/part-0.parquet"


@pytest.mark.parametrize(
    ("values", "kind"),
    [(["1", "20"], pyarrow.int64()), (["01", "20"], pyarrow.string()), (["1", "a"], pyarrow.string())],
)
def test_partitions_are_numbers_where_nothing_is_lost(
    tmp_path: Path, values: list[str], kind: pyarrow.DataType
) -> None:
    for value in values:
        write_parquet(tmp_path / f"in/p={value}/x.parquet", {"text": ["a"]})
    for url in (tmp_path / "in", tmp_path / "in/p=*", tmp_path / "in/p=*/x.parquet"):
        reader = opened(url, {"prompt": "{{ p }}", "partitioning": "hive"})
        assert reader.schema.field("p").type == kind
        assert sorted(record.value["prompt"] for record in reader.records()) == values


@pytest.mark.parametrize(
    ("files", "table", "reason"),
    [
        ({"a.parquet": {"text": ["a"]}}, {"partitioning": "hive"}, "No folder of the input is named column=value"),
        (
            {"p=1/a.parquet": {"text": ["a"]}, "a.parquet": {"text": ["a"]}},
            {"partitioning": "hive"},
            r"p=1/a\.parquet lies in the partitions 'p', and a\.parquet in none",
        ),
        (
            {"text=1/a.parquet": {"text": ["a"]}},
            {"partitioning": "hive"},
            "'text' is in the files and in the names of their folders",
        ),
        (
            {"p=1/p=2/a.parquet": {"text": ["a"]}},
            {"partitioning": "hive"},
            r"'p=1/p=2/a\.parquet' lies in two folders that give the column 'p'",
        ),
        (
            {"p=%FF/a.parquet": {"text": ["a"]}},
            {"partitioning": "hive"},
            "The name of the folder 'p=%FF' is not UTF-8",
        ),
        (
            {"a.parquet": {"text": pyarrow.array([[1]], pyarrow.list_(pyarrow.timestamp("s", "Nowhere")))}},
            {},
            "times of the zone 'Nowhere', which is not known",
        ),
        ({"a.parquet": {"text": ["a"]}, "b.csv": {"text": ["a"]}}, {}, r"a\.parquet is parquet, and b\.csv is csv"),
        (
            {"a.parquet": {"text": ["a"]}, "b.parquet": {"text": [1]}},
            {},
            r"The column 'text' is of type string in a\.parquet and of type int64 in b\.parquet",
        ),
        ({"a.parquet": {"text": ["a"]}, "b.dat": {"text": ["a"]}}, {}, r"b\.dat has an ending that says no format"),
        (
            {"a.parquet": {"title": ["a"]}},
            {},
            "table.prompt uses 'text', which is no column of the input; it has 'title'",
        ),
        (
            {"a.parquet": {"text": ["a"]}},
            {"columns": ["txt"]},
            "table.columns names 'txt', which is no column of the input: did you mean 'text'?",
        ),
        (
            {"a.parquet": {"text": ["a"]}},
            {"parameter_columns": {"seed": "sed"}},
            "table.parameter_columns.seed names 'sed', which is no column",
        ),
        ({"a.parquet": {"text": [b"a"]}}, {}, "'text' holds bytes, which are no text"),
        (
            {"a.parquet": {"text": pyarrow.array([b"a"]).dictionary_encode()}},
            {},
            "'text' holds bytes, which are no text",
        ),
        ({"a.csv": {"text": ["a"]}}, {"input_format": "parquet"}, r"a\.csv can't be read as Parquet"),
        ({"a.csv": {"text": ["a"]}}, {"input_format": "arrow"}, r"a\.csv can't be read as Arrow IPC"),
        ({"a.parquet": {"text": ["a"]}}, {"input_format": "csv"}, r"a\.parquet is a Parquet file"),
    ],
)
def test_what_no_job_can_be_made_of_is_refused_when_it_is_opened(
    tmp_path: Path, files: dict[str, Any], table: dict[str, Any], reason: str
) -> None:
    for name, columns in files.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (write_csv if name.endswith(".csv") else write_parquet)(path, columns)
    with pytest.raises(InputInvalidError, match=reason):
        opened(tmp_path / "in", table)


@pytest.mark.parametrize("rest", ['2,"b\n3,c\n4,d\n', '2,"b', '2,"', '2,"b ""c""\n\n', '2,b\n3,"c\n'], ids=repr)
def test_a_quote_that_is_open_at_the_end_swallows_no_rows(tmp_path: Path, rest: str) -> None:
    (tmp_path / "t.csv").write_text("id,text\n1,a\n" + rest)
    reader = opened(tmp_path / "t.csv")
    line = 4 if rest.startswith("2,b") else 3
    told = rf"t\.csv can't be read on from line {line}: a quote is not closed before the file ends"
    for read in (reader.records, lambda: reader.files[0].batches(["id"])):
        with pytest.raises(InputInvalidError, match=told):
            list(read())


def test_quotes_that_are_closed_may_stand_at_the_end(tmp_path: Path) -> None:
    for end in ("", "\n", "\r\n", "\n\n"):
        (tmp_path / "t.csv").write_text('id,text\n1,"a\n""b"""' + end, newline="")
        assert prompts(tmp_path / "t.csv", "{{ text }}") == ['a\n"b"']


def test_a_carriage_return_alone_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,text\r1,a\r")
    with pytest.raises(InputInvalidError, match=r"from line 1 \(a carriage return stands alone\): end lines in"):
        opened(tmp_path / "t.csv")


def test_a_line_that_never_ends_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_llmengine.worker.tables.text_files.MOST_LINE", 1000)
    monkeypatch.setattr("airflow_llmengine.worker.tables.text_files.BLOCK_BYTES", 100)
    (tmp_path / "t.csv").write_text("id,text\n" + "1,a\n" * 500 + "x" * 5000)
    told = r"t\.csv can't be read on from line 502, which has more than 1000 characters"
    with pytest.raises(InputInvalidError, match=told):
        list(opened(tmp_path / "t.csv").records())


@pytest.mark.parametrize("header", ["text,b,text", ""])
def test_a_header_that_names_no_columns_is_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "t.csv").write_text(header)
    with pytest.raises(InputInvalidError, match=r"has two columns 'text'|is empty: its first line must be"):
        opened(tmp_path / "t.csv")


def test_a_damaged_file_ends_the_job_and_says_which(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in/a.parquet", {"text": ["a" * 1000]}, compression="none", use_dictionary=False)
    path = write_parquet(
        tmp_path / "in/b.parquet", {"text": ["secret" * 1000]}, compression="snappy", use_dictionary=False
    )
    data = bytearray(path.read_bytes())
    data[30:60] = b"\xff" * 30
    path.write_bytes(data)
    reader = opened(tmp_path / "in")
    records = reader.records()
    assert next(records).value is not None
    with pytest.raises(InputInvalidError, match=r"b\.parquet can't be read as Parquet") as refused:
        next(records)
    assert "secret" not in str(refused.value)


def test_a_file_that_is_replaced_in_mid_read_ends_the_job(tmp_path: Path) -> None:
    for number in range(2):
        write_parquet(tmp_path / f"in/{number}.parquet", {"text": [f"{number}"] * 10})
    reader = opened(tmp_path / "in")
    records = reader.records()
    assert next(records).value["prompt"] == "0"
    write_parquet(tmp_path / "in/1.parquet", {"text": ["x"] * 10})
    with pytest.raises(InputChangedError, match="was changed while the job read it"):
        list(records)
    with pytest.raises(InputChangedError):
        reader.check_unchanged()


def test_files_may_differ_in_how_many_values_a_dictionary_has(tmp_path: Path) -> None:
    for name, index in (("a", pyarrow.int8()), ("b", pyarrow.int16())):
        text = pyarrow.array([name]).cast(pyarrow.dictionary(index, pyarrow.string()))
        write_parquet(tmp_path / f"in/{name}.parquet", {"text": text})
    reader = opened(tmp_path / "in")
    assert reader.schema.field("text").type == pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    assert [record.value["prompt"] for record in reader.records()] == ["a", "b"]
    batches = [batch for file in reader.files for batch in file.batches(["text"])]
    assert [batch.schema for batch in batches] == [reader.schema, reader.schema]


def test_a_column_that_one_file_has_not_may_be_null(tmp_path: Path) -> None:
    schema = pyarrow.schema([pyarrow.field("text", pyarrow.string(), nullable=False)])
    (tmp_path / "in").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}, schema=schema), tmp_path / "in/a.parquet")
    write_parquet(tmp_path / "in/b.parquet", {"other": [1]})
    reader = opened(tmp_path / "in", {"on_null": "skip"})
    assert [record.skipped for record in reader.records()] == [False, True]
    assert reader.schema.field("text").nullable
    assert opened(tmp_path / "in/a.parquet").schema.field("text").nullable is False


def test_a_time_zone_that_is_not_known_here_is_told_when_the_table_is_opened(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": pyarrow.array([0], pyarrow.timestamp("us", "Atlantis/Poseidonis"))})
    with pytest.raises(InputInvalidError, match="times of the zone 'Atlantis/Poseidonis', which is not known"):
        opened(tmp_path / "t.parquet")


def test_chunks_are_cut_by_what_a_row_asks_and_not_by_how_it_is_stored(tmp_path: Path) -> None:
    columns = {"text": ["a" * 300, None, "ü"] * 100, "blob": [b"x" * 1000] * 300}
    write_parquet(tmp_path / "one.parquet", columns)
    write_parquet(tmp_path / "two.parquet", columns, row_group_size=7, compression="none", use_dictionary=False)
    write_arrow(tmp_path / "three.arrow", columns)
    sizes = [[raw.size for raw in raw_records(path)] for path in sorted(tmp_path.iterdir())]
    assert sizes == [[300, 0, 2] * 100] * 3


def test_times_are_written_to_the_microsecond(tmp_path: Path) -> None:
    moments = pyarrow.array([1_500_000_001], pyarrow.timestamp("ns", "Europe/Berlin"))
    inner = pyarrow.array([[1_500_000_001]], pyarrow.list_(pyarrow.duration("ns")))
    write_parquet(tmp_path / "t.parquet", {"text": moments, "inner": inner})
    made = prompts(tmp_path / "t.parquet", "{{ text }} {{ inner }}")
    assert made == ['1970-01-01 01:00:01.500000+01:00 ["0:00:01.500000"]']


def test_half_of_a_character_that_a_template_makes_is_its_rows_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": ["a", "b"]})
    first, second = raw_records(tmp_path / "t.parquet", {"prompt": "{{ '\\ud83d' if text == 'a' else text }}"})
    assert first.error is not None
    assert first.error.type is RecordErrorType.INVALID_UNICODE
    assert second.value["prompt"] == "b"


def test_a_prompt_that_is_too_large_is_not_made(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": ["a", "b"], "n": [10**12, 2]})
    first, second = raw_records(tmp_path / "t.parquet", {"prompt": "{{ text * n }}"})
    assert first.error is not None
    assert first.error.type is RecordErrorType.RECORD_TOO_LARGE
    assert second.value["prompt"] == "bb"


def test_keys_of_maps_are_those_of_json(tmp_path: Path) -> None:
    days = pyarrow.map_(pyarrow.date32(), pyarrow.int64())
    biases = pyarrow.map_(pyarrow.int32(), pyarrow.float32())
    write_parquet(
        tmp_path / "t.parquet",
        {
            "text": pyarrow.array([[(datetime.date(2024, 2, 29), 1)]], days),
            "bias": pyarrow.array([[(50256, -2.0)]], biases),
        },
    )
    [record] = raw_records(tmp_path / "t.parquet", {"parameter_columns": {"logit_bias": "bias"}})
    assert record.value["prompt"] == '{"2024-02-29": 1}'
    assert validated(record).logit_bias == {"50256": -2}


def test_few_rows_are_read_at_once_where_a_needed_column_is_large(tmp_path: Path) -> None:
    columns: dict[str, Any] = {f"c{number}": range(3000) for number in range(100)}
    columns["text"] = [f"{number} " * 10_000 for number in range(3000)]
    columns["list"] = [[f"{number}"] for number in range(3000)]
    write_parquet(tmp_path / "t.parquet", columns, use_dictionary=False, compression="zstd")
    [file] = opened(tmp_path / "t.parquet").files
    large, small = (max(batch.num_rows for batch in file.batches([name])) for name in ("text", "list"))
    assert large * len("1000 " * 10_000) < 2 * BATCH_BYTES
    assert small == MOST_ROWS
