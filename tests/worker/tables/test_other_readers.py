"""The resulting table in the hands of those who load it: DuckDB, pandas and polars see its types and cells."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas  # type: ignore[import-untyped]
import polars
import pyarrow
import pyarrow.parquet
import pytest

from airflow_llmengine.worker.engines.echo import REJECT_MARKER
from tests.worker.tables.table_jobs import PROMPT, TableJob

REVIEWS = ["Good, and {{ quick }}", f"{REJECT_MARKER} x", "Broken\n😀", None]
NOON = datetime.datetime(2026, 1, 5, 12, 30, 15, 123456, tzinfo=datetime.UTC)

INPUT = {
    "review_id": pyarrow.array([4106, 4107, 4108, 4109], pyarrow.int32()),
    "review": pyarrow.array(REVIEWS),
    "price": pyarrow.array([Decimal("19.90"), None, Decimal("-0.01"), Decimal("99999.99")], pyarrow.decimal128(9, 2)),
    "written at": pyarrow.array([NOON] * 4, pyarrow.timestamp("us", "UTC")),
    "tags": pyarrow.array([["a", None], [], None, ["b"]], pyarrow.list_(pyarrow.string())),
    "shop": pyarrow.array([{"name": "x", "open": True}, None, {"name": None, "open": False}, None]),
    "country": pyarrow.array(["de", "fr", None, "de"]).dictionary_encode(),
    "photo": pyarrow.array([b"\xff\x00", None, b"", b"\x01"]),
}

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sentiment": {"enum": ["positive", "neutral", "negative"]},
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
        "certainty": {"type": "number"},
        "refund": {"type": "boolean"},
        "day": {"type": "string", "format": "date"},
        "topics": {"type": "array", "items": {"type": "string", "maxLength": 4}},
        "product": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}},
    },
}
TABLE = {
    **PROMPT,
    "prompt": "{{ review }}",
    "on_null": "skip",
    "output_schema": SCHEMA,
    "error_column": "error",
    "completion_tokens_column": "tokens",
}
MADE = [*SCHEMA["properties"], "error", "tokens"]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job's output: of four rows, two are answered, one failed and one was skipped."""
    folder = tmp_path_factory.mktemp("table")
    pyarrow.parquet.write_table(pyarrow.table(INPUT), folder / "in.parquet", row_group_size=3)
    manifest = TableJob(folder / "in.parquet", folder / "out.parquet", TABLE).done()
    assert (manifest.succeeded, manifest.failed, manifest.skipped) == (2, 1, 1)
    return folder / "out.parquet"


@pytest.fixture(scope="module")
def cells(output: Path) -> list[dict[str, Any]]:
    """What is in the output by the library that wrote it."""
    rows: list[dict[str, Any]] = pyarrow.parquet.ParquetFile(output).read().to_pylist()
    assert [row["error"] is None for row in rows] == [True, False, True, True]
    assert [row["score"] is None for row in rows] == [False, True, False, True]
    return rows


def test_duckdb(output: Path, cells: list[dict[str, Any]]) -> None:
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        table = database.read_parquet(str(output))
        assert dict(zip(table.columns, map(str, table.types), strict=True)) == {
            "review_id": "INTEGER",
            "review": "VARCHAR",
            "price": "DECIMAL(9,2)",
            "written at": "TIMESTAMP WITH TIME ZONE",
            "tags": "VARCHAR[]",
            "shop": 'STRUCT("name" VARCHAR, open BOOLEAN)',
            "country": "VARCHAR",
            "photo": "BLOB",
            "sentiment": "VARCHAR",
            "score": "BIGINT",
            "certainty": "DOUBLE",
            "refund": "BOOLEAN",
            "day": "DATE",
            "topics": "VARCHAR[]",
            "product": 'STRUCT("name" VARCHAR)',
            "error": "VARCHAR",
            "tokens": "BIGINT",
        }
        assert [dict(zip(table.columns, row, strict=True)) for row in table.fetchall()] == cells
        means = database.execute("SELECT count(score), avg(score) FROM read_parquet(?)", [str(output)]).fetchone()
    scores = [row["score"] for row in cells if row["score"] is not None]
    assert means == (2, sum(scores) / 2)


def test_polars(output: Path, cells: list[dict[str, Any]]) -> None:
    frame = polars.read_parquet(output)
    text = polars.String()
    assert dict(frame.schema) == {
        "review_id": polars.Int32(),
        "review": text,
        "price": polars.Decimal(9, 2),
        "written at": polars.Datetime("us", "UTC"),
        "tags": polars.List(text),
        "shop": polars.Struct({"name": text, "open": polars.Boolean()}),
        "country": polars.Categorical(),
        "photo": polars.Binary(),
        "sentiment": text,
        "score": polars.Int64(),
        "certainty": polars.Float64(),
        "refund": polars.Boolean(),
        "day": polars.Date(),
        "topics": polars.List(text),
        "product": polars.Struct({"name": text}),
        "error": text,
        "tokens": polars.Int64(),
    }
    assert frame.to_dicts() == cells
    before = polars.read_parquet(output.with_name("in.parquet"))
    assert frame.drop(MADE).equals(before, null_equal=True)


def test_pandas(output: Path, cells: list[dict[str, Any]]) -> None:
    frame = pandas.read_parquet(output, dtype_backend="pyarrow")
    before = pandas.read_parquet(output.with_name("in.parquet"), dtype_backend="pyarrow")
    pandas.testing.assert_frame_equal(frame[list(INPUT)], before)
    assert {name: str(frame[name].dtype) for name in MADE} == {
        "sentiment": "string[pyarrow]",
        "score": "int64[pyarrow]",
        "certainty": "double[pyarrow]",
        "refund": "bool[pyarrow]",
        "day": "date32[day][pyarrow]",
        "topics": "list<element: string>[pyarrow]",
        "product": "struct<name: string>[pyarrow]",
        "error": "string[pyarrow]",
        "tokens": "int64[pyarrow]",
    }
    for name in MADE:
        missing = [row[name] is None for row in cells]
        assert list(frame[name].isna()) == missing
        assert [cell for cell, is_null in zip(frame[name], missing, strict=True) if not is_null] == [
            row[name] for row in cells if row[name] is not None
        ]


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job whose input and output are partitioned by two columns."""
    folder = tmp_path_factory.mktemp("regions")
    for region, day in (("EU", "2026-01-05"), ("EU", "2026-01-06"), ("a b/c", "2026-01-05")):
        path = folder / "in" / f"region={region.replace('/', '%2F')}" / f"day={day}" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table({"review": [f"Of {region}", "Good"], "id": [1, 2]}), path)
    TableJob(f"{folder}/in/", f"{folder}/out/", {**PROMPT, "prompt": "{{ review }}", "partitioning": "hive"}).done()
    return folder


def test_a_partitioned_output_is_one_table_to_all_of_them(regions: Path) -> None:
    expected = {
        (region, day, text)
        for region, day in (("EU", "2026-01-05"), ("EU", "2026-01-06"), ("a b/c", "2026-01-05"))
        for text in (f"Of {region}", "Good")
    }
    with duckdb.connect() as database:
        query = "SELECT region, CAST(day AS VARCHAR), completion FROM read_parquet(?, hive_partitioning = true)"
        assert set(database.execute(query, [f"{regions}/out/**/*.parquet"]).fetchall()) == expected
    lazy = polars.scan_parquet(f"{regions}/out/", hive_partitioning=True, try_parse_hive_dates=False)
    assert set(lazy.select("region", "day", "completion").collect().rows()) == expected
    frame = pandas.read_parquet(f"{regions}/out")
    assert set(frame[["region", "day", "completion"]].astype(str).itertuples(index=False, name=None)) == expected
