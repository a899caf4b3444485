"""docs/tables.md says what the code does with a table: endings, templates, columns and limits."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from airflow_llmengine.spec import output_schema
from airflow_llmengine.spec import table as tables
from airflow_llmengine.spec.check_table import NOT_IN_TABLES
from airflow_llmengine.spec.output_schema import ColumnKind
from airflow_llmengine.spec.table import OnNull, Table, format_of_name
from airflow_llmengine.worker.readers.limits import MAX_RECORD_BYTES
from tests.docs.pages import DOCS, first_column

PAGE = DOCS / "tables.md"
FORMATS = {"Parquet": "parquet", "Arrow": "arrow", "CSV": "csv", "JSON": "jsonl"}


def section(heading: str) -> str:
    return PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_each_ending_is_in_the_row_of_its_format() -> None:
    rows = re.findall(r"^\| (\w+)[^|]*\| ([^|]*)\|", section("The input"), re.MULTILINE)
    endings = {ending: FORMATS[name] for name, cell in rows if name in FORMATS for ending in re.findall(r"\.\w+", cell)}
    for packed in (".gz", ".zst"):
        endings.pop(packed)
    # TSV is in the row of CSV.
    assert endings.pop(".tsv") == "csv"
    assert endings == {ending: found for ending, found in tables._ENDINGS.items() if ending != ".tsv"}
    assert format_of_name("x.tsv") == "tsv"


def test_every_policy_for_nulls_is_told() -> None:
    named = {re.sub(r"` \(.*", "", cell) for cell in first_column(PAGE, "Rows without a value")}
    assert named == set(get_args(OnNull))


def test_every_field_that_makes_a_column_is_told() -> None:
    every = {name: "x" for name in Table.model_fields if name.endswith("_column")}
    made = {field for field, _ in Table.model_validate({**every, "output_schema": {}}).made_columns}
    said = section("The output")
    assert [field for field in made if f"`{field}`" not in said] == []
    assert len(made) == 5


@pytest.mark.parametrize("name", ["n", "logprobs", "tools"])
def test_what_is_said_to_have_no_column_has_none(name: str) -> None:
    assert f"`{name}`" in section("Templates")
    assert name in NOT_IN_TABLES


def test_every_kind_of_column_is_told() -> None:
    said = section("Typed columns")
    words = {"timestamp": "timestamp in UTC", "list": "| list |", "struct": "| struct |", "date": "`date`"}
    assert [kind for kind in get_args(ColumnKind) if words.get(kind, f"`{kind}`") not in said] == []


def test_the_limits_are_those_of_the_code() -> None:
    from airflow_llmengine.worker.tables.arrow_files import MOST_ROWS
    from airflow_llmengine.worker.tables.table_output import MOST_FILES
    from airflow_llmengine.worker.tables.template_environment import MOST_STEPS

    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", section("Limits"), re.MULTILINE))
    assert (
        rows["a row's prompt, and any text that its template makes; a row of CSV or JSON lines"]
        == f"{MAX_RECORD_BYTES // 2**20} MiB"
    )
    assert rows["rounds of loops, and calls of macros, in a template for one row"] == f"{MOST_STEPS:,}"
    assert rows["`table`, as JSON"] == f"{tables.MOST_BYTES // 2**20} MiB, {tables.MOST_LEVELS} levels"
    said = section("Typed columns")
    assert f"more than {output_schema.MOST_LEVELS} levels or {output_schema.MOST_FIELDS:,} fields" in said
    assert f"at most {MOST_ROWS} rows at a time" in section("The input")
    assert rows["files of an output that is a folder"] == f"{MOST_FILES:,}"


def test_what_is_shown_of_templates_is_one() -> None:
    from airflow_llmengine.worker.tables.cells import nested
    from airflow_llmengine.worker.tables.row_templates import RowTemplate

    cells = {
        "review": "Good",
        "customer review": "Good",
        "address": nested({"city": "Lyon"}, None),  # type: ignore[arg-type]
        "tags": ["a", "b"],
        "stars": 4,
    }
    shown = [sample for sample in re.findall(r"`([^`]*\{[{%][^`]*)`", section("Templates")) if "tojson" not in sample]
    assert [RowTemplate(sample, "prompt", cells).render(cells) for sample in shown] == [
        "Good",
        "Good",
        "Lyon",
        "a",
        " … ",
        RowTemplate("{{ row }}", "prompt", cells).render(cells),
        "a, b",
    ]
