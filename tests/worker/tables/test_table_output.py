"""The resulting table: the input's columns untouched, what was made beside them, in one file or in a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.worker.engines.echo import LENGTH_MARKER, REJECT_MARKER
from airflow_llmengine.worker.tables.table_output import output_names
from tests.worker.tables.table_jobs import PROMPT, TableJob, files_below, write_parquet

REVIEW = {
    "type": "object",
    "properties": {
        "sentiment": {"enum": ["positive", "neutral", "negative"]},
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["sentiment", "score"],
}


def test_one_file_has_the_inputs_columns_and_the_completion(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "in.parquet", {"id": [1, 2, 3], "text": ["a", "b", "c"], "n": [None, 1.5, 2.5]})
    manifest = TableJob(source, tmp_path / "out.parquet", PROMPT).done(chunk_records=2)
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    before = pyarrow.parquet.read_table(source)
    assert found.select(before.schema.names).equals(before)
    assert found.schema.names == ["id", "text", "n", "completion"]
    assert found["completion"].to_pylist() == ["a", "b", "c"]
    assert (manifest.records, manifest.succeeded, manifest.output_format, manifest.files) == (3, 3, "parquet", None)
    assert files_below(tmp_path) == [
        "in.parquet",
        "out.parquet",
        "out.parquet.job/current.json",
        "out.parquet.manifest.json",
    ]


def test_columns_that_are_asked_for_are_filled_row_by_row(tmp_path: Path) -> None:
    texts = ["fine", f"{REJECT_MARKER} x", f"{LENGTH_MARKER} x", None]
    source = write_parquet(tmp_path / "in.parquet", {"text": texts, "id": range(4)})
    table = {
        **PROMPT,
        "on_null": "skip",
        "columns": ["id"],
        "output_schema": REVIEW,
        "completion_column": "answer",
        "error_column": "error",
        "finish_reason_column": "why",
        "prompt_tokens_column": "read",
        "completion_tokens_column": "written",
    }
    manifest = TableJob(source, tmp_path / "out.parquet", table).done()
    fine, rejected, cut, skipped = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert list(fine) == ["id", "answer", "sentiment", "score", "error", "why", "read", "written"]
    assert json.loads(fine["answer"]) == {"sentiment": fine["sentiment"], "score": fine["score"]}
    assert (fine["error"], fine["why"], fine["read"], fine["written"]) == (None, "stop", 1, 1)
    nothing = dict.fromkeys(fine)
    assert rejected == {**nothing, "id": 1, "error": rejected["error"]}
    assert rejected["error"].startswith("rejected_by_engine: row 2 of in.parquet: ")
    assert cut == {
        **nothing,
        "id": 2,
        "answer": texts[2],
        "error": cut["error"],
        "why": "length",
        "read": 2,
        "written": 2,
    }
    assert cut["error"].startswith("truncated: ")
    assert skipped == {**nothing, "id": 3}
    counts = (manifest.records, manifest.succeeded, manifest.truncated, manifest.skipped, manifest.failed)
    assert counts == (4, 1, 1, 1, 1)


def test_answers_that_do_not_fit_are_failures(tmp_path: Path) -> None:
    texts = ['{"sentiment": "positive", "score": 1}', '{"sentiment": "positive"}', '{"score": "x"}', "some review"]
    source = write_parquet(tmp_path / "in.parquet", {"text": texts})
    table = {**PROMPT, "output_schema": REVIEW, "error_column": "error"}
    job = TableJob(source, tmp_path / "out.parquet", table)
    outcome = job.run(max_error_rate=0.4)
    assert outcome.exit_code is ExitCode.TOO_MANY_FAILED_RECORDS
    assert "2 of 4 records failed (2 invalid_output), more than max_error_rate 0.4 allows" in outcome.message
    assert "score is missing or null in the completion" in outcome.message
    assert not (tmp_path / "out.parquet").exists()
    manifest = job.done()
    assert (manifest.succeeded, manifest.failed, manifest.failures) == (2, 2, {"invalid_output": 2})
    rows = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["score"] is None for row in rows] == [False, True, True, False]
    assert [row["sentiment"] is None for row in rows] == [False, True, True, False]
    assert rows[1]["error"] == "invalid_output: score is missing or null in the completion"


def test_a_job_in_which_no_row_that_was_tried_fits_has_failed(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "in.parquet", {"text": ['{"score": 1}', None, "{}"]})
    table = {**PROMPT, "output_schema": REVIEW, "on_null": "skip"}
    outcome = TableJob(source, tmp_path / "out.parquet", table).run()
    assert outcome.exit_code is ExitCode.TOO_MANY_FAILED_RECORDS
    assert "all 2 records failed (2 invalid_output)" in outcome.message


def test_a_job_whose_rows_are_all_skipped_is_done_without_an_engine(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "in.parquet", {"text": pyarrow.array([None, None], pyarrow.string())})
    manifest = TableJob(source, tmp_path / "out.parquet", {**PROMPT, "on_null": "skip"}).done()
    assert (manifest.records, manifest.succeeded, manifest.skipped, manifest.engine_version) == (2, 0, 2, None)
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet")["completion"].to_pylist() == [None, None]


@pytest.mark.parametrize("ending", ["parquet", "csv", "tsv", "arrow", "jsonl"])
def test_a_table_without_rows_becomes_one(tmp_path: Path, ending: str) -> None:
    source = write_parquet(tmp_path / "in.parquet", {"text": pyarrow.array([], pyarrow.string())})
    manifest = TableJob(source, tmp_path / f"out.{ending}", PROMPT).done()
    assert (manifest.records, manifest.output_format) == (0, ending)
    assert manifest.output_bytes == (tmp_path / f"out.{ending}").stat().st_size


def test_metadata_of_pandas_goes_along_and_is_no_hindrance(tmp_path: Path) -> None:
    pandas = {"index_columns": ["key"], "columns": [], "column_indexes": [], "pandas_version": "2.2"}
    rows = pyarrow.table({"text": ["a"], "key": [7]}).replace_schema_metadata(
        {"pandas": json.dumps(pandas), "own": "x"}
    )
    pyarrow.parquet.write_table(rows, tmp_path / "in.parquet")
    TableJob(tmp_path / "in.parquet", tmp_path / "all.parquet", PROMPT).done()
    TableJob(tmp_path / "in.parquet", tmp_path / "some.parquet", {**PROMPT, "columns": ["text"]}).done()
    for name in ("all", "some"):
        found = pyarrow.parquet.read_table(tmp_path / f"{name}.parquet")
        assert found.schema.metadata == rows.schema.metadata


# What there can't be


@pytest.mark.parametrize(
    ("columns", "table", "told"),
    [
        ({"completion": [1]}, {}, "table.completion_column: the input has a column 'completion' as well"),
        ({"score": [1]}, {"output_schema": REVIEW}, "table.output_schema: the input has a column 'score' as well"),
        (
            {"ids": [[1]]},
            {"output_format": "csv"},
            "the column 'ids' is of type list<.*>, which can't be written as csv",
        ),
        (
            {"blob": [b"x"]},
            {"output_format": "tsv"},
            "the column 'blob' is of type binary, which can't be written as tsv",
        ),
        ({}, {"columns": [], "output_format": "csv"}, "one column alone, whose nulls csv can't tell from empty lines"),
    ],
)
def test_what_can_not_be_written_is_refused_before_anything_is_launched(
    tmp_path: Path, columns: dict[str, Any], table: dict[str, Any], told: str
) -> None:
    source = write_parquet(tmp_path / "in.parquet", {"text": ["a"], **columns})
    outcome = TableJob(source, tmp_path / "out.parquet", {**PROMPT, **table}).run()
    assert outcome.exit_code is ExitCode.BAD_REQUEST
    assert re.search(told, outcome.message), outcome.message
    assert files_below(tmp_path) == ["in.parquet"]


def test_a_column_that_is_left_out_clashes_with_nothing(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "in.parquet", {"text": ["a"], "completion": [1], "ids": [[1]]})
    TableJob(source, tmp_path / "out.csv", {**PROMPT, "columns": ["text"]}).done()
    assert (tmp_path / "out.csv").read_text() == '"text","completion"\n"a","a"\n'


# Folders


@pytest.fixture
def regions(tmp_path: Path) -> Path:
    """Three files in two partitions, one of whose names is escaped, and an empty one."""
    folder = tmp_path / "in"
    for name, texts in (
        ("region=EU%2FDE/a.parquet", ["one", "two"]),
        ("region=US/a.parquet", ["three"]),
        ("region=US/b.parquet", ["four", "five", "six"]),
        ("region=US/c.parquet", []),
    ):
        write_parquet(folder / name, {"text": pyarrow.array(texts, pyarrow.string())})
    return folder


def test_a_folder_is_partitioned_like_the_input(tmp_path: Path, regions: Path) -> None:
    job = TableJob(f"{regions}/", f"{tmp_path}/out/", {**PROMPT, "partitioning": "hive"})
    manifest = job.done(chunk_records=2)
    names = ["region=EU%2FDE/a.parquet", "region=US/a.parquet", "region=US/b.parquet", "region=US/c.parquet"]
    assert files_below(tmp_path / "out") == names
    assert manifest.files is not None
    assert [(file.name, file.records) for file in manifest.files] == list(zip(names, [2, 1, 3, 0], strict=True))
    assert manifest.output_bytes == sum((tmp_path / "out" / name).stat().st_size for name in names)
    assert pyarrow.parquet.ParquetFile(tmp_path / "out" / names[2]).schema_arrow.names == ["text", "completion"]
    found = pyarrow.parquet.read_table(tmp_path / "out", partitioning="hive")
    assert found["completion"].to_pylist() == ["one", "two", "three", "four", "five", "six"]
    assert found["region"].to_pylist() == ["EU/DE"] * 2 + ["US"] * 4
    assert files_below(tmp_path / "out.job") == ["current.json"]
    again = job.run()
    assert (again.manifest, "stands already" in again.message) == (manifest, True)


def test_one_file_of_a_partitioned_input_has_the_partitions_as_columns(tmp_path: Path, regions: Path) -> None:
    TableJob(f"{regions}/", tmp_path / "out.parquet", {**PROMPT, "partitioning": "hive"}).done()
    found = pyarrow.parquet.ParquetFile(tmp_path / "out.parquet").read()
    assert found.schema.names == ["text", "region", "completion"]
    assert found["region"].to_pylist() == ["EU/DE"] * 2 + ["US"] * 4


def test_another_format_gives_another_ending(tmp_path: Path, regions: Path) -> None:
    TableJob(f"{regions}/", f"{tmp_path}/out/", {**PROMPT, "output_format": "csv", "columns": ["text"]}).done()
    assert files_below(tmp_path / "out")[0] == "region=EU%2FDE/a.csv"
    assert (tmp_path / "out/region=US/c.csv").read_text() == '"text","completion"\n'


def test_a_partitions_name_is_no_name_of_a_made_column(tmp_path: Path, regions: Path) -> None:
    table = {**PROMPT, "partitioning": "hive", "columns": ["text"], "completion_column": "region"}
    outcome = TableJob(f"{regions}/", f"{tmp_path}/out/", table).run()
    assert (outcome.exit_code, "the output's folders give a column 'region' as well" in outcome.message) == (
        ExitCode.BAD_REQUEST,
        True,
    )


def test_regenerating_takes_away_what_the_new_output_has_not(tmp_path: Path, regions: Path) -> None:
    job = TableJob(f"{regions}/", f"{tmp_path}/out/", PROMPT)
    job.done()
    (regions / "region=EU%2FDE/a.parquet").unlink()
    (regions / "region=US/b.parquet").unlink()
    manifest = job.done(series="next")
    assert files_below(tmp_path / "out") == ["region=US/a.parquet", "region=US/c.parquet"]
    assert manifest.records == 1
    assert files_below(tmp_path / "out.job") == ["current.json"]


@pytest.mark.parametrize("change", ["region=US/stray.parquet", "region=US/a.parquet", None])
def test_a_folder_that_somebody_changed_is_not_taken_for_the_output(
    tmp_path: Path, regions: Path, change: str | None
) -> None:
    job = TableJob(f"{regions}/", f"{tmp_path}/out/", PROMPT)
    job.done()
    directory = JobDirectory(Storage(), f"{tmp_path}/out/")
    (tmp_path / "out/_SUCCESS").touch()
    assert directory.valid_manifest() is not None
    if change is None:
        (tmp_path / "out/region=US/b.parquet").unlink()
    else:
        (tmp_path / "out" / change).write_bytes(b"PAR1")
    assert directory.valid_manifest() is None
    outcome = job.run()
    assert outcome.exit_code is ExitCode.BAD_REQUEST
    assert "was changed, or lost its manifest" in outcome.message
    job.done(overwrite=True)
    assert files_below(tmp_path / "out") == [
        "_SUCCESS",
        "region=EU%2FDE/a.parquet",
        "region=US/a.parquet",
        "region=US/b.parquet",
        "region=US/c.parquet",
    ]


def test_somebody_elses_folder_is_left_alone(tmp_path: Path, regions: Path) -> None:
    write_parquet(tmp_path / "out/theirs.parquet", {"x": [1]})
    job = TableJob(f"{regions}/", f"{tmp_path}/out/", PROMPT)
    outcome = job.run()
    assert (outcome.exit_code, "no job of this plugin wrote it" in outcome.message) == (ExitCode.BAD_REQUEST, True)
    assert files_below(tmp_path / "out") == ["theirs.parquet"]


@pytest.mark.parametrize("target", ["in/", "in/region=US/"])
def test_a_folder_that_is_read_is_not_written(tmp_path: Path, regions: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(regions.parent)
    outcome = TableJob(f"{regions}/*/*.parquet", f"{tmp_path}/link/{target}", PROMPT).run()
    assert (outcome.exit_code, "is also read as input" in outcome.message) == (ExitCode.BAD_REQUEST, True)


def test_a_file_is_no_folder(tmp_path: Path, regions: Path) -> None:
    (tmp_path / "out").write_text("")
    outcome = TableJob(f"{regions}/", f"{tmp_path}/out/", PROMPT).run()
    assert (outcome.exit_code, "is a file: name a folder" in outcome.message) == (ExitCode.BAD_REQUEST, True)


def test_a_folder_with_links_in_it_is_refused(tmp_path: Path, regions: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/region=US").symlink_to(regions / "region=US")
    outcome = TableJob(f"{regions}/*/*.parquet", f"{tmp_path}/out/", PROMPT).run(overwrite=True)
    assert outcome.exit_code is ExitCode.BAD_REQUEST
    assert len(files_below(regions)) == 4


def test_a_single_file_may_become_a_folder(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "in.parquet", {"text": ["a"]})
    manifest = TableJob(source, f"{tmp_path}/out/", PROMPT).done()
    assert files_below(tmp_path / "out") == ["in.parquet"]
    assert manifest.handle == JobHandle(path=f"{tmp_path}/out", fingerprint=manifest.fingerprint, generation=1)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.parquet", "b=1/c.csv.gz"], ["a.parquet", "b=1/c.parquet"]),
        (["a", "a.b"], ["a.parquet", "a.b.parquet"]),
        (
            ["_a.csv", ".b/c.csv", "//d.csv", "x.job/e.csv"],
            ["part_a.parquet", "part.b/c.parquet", "part/part/d.parquet", "x.job_/e.parquet"],
        ),
        (["a.csv", "a.tsv", "a.CSV"], ["a.parquet", "a.tsv.parquet", "a.CSV.parquet"]),
        (["a.csv.parquet", "a.csv", "a.csv.csv"], ["a.csv.parquet", "a.parquet", "a.csv.csv.parquet"]),
        (["a.csv", "a.csv.gz", "a.csv.gz.gz"], ["a.parquet", "a.csv.gz.parquet", "a.csv.gz.gz.parquet"]),
    ],
)
def test_names_of_files(names: list[str], expected: list[str]) -> None:
    assert output_names(names, "parquet") == expected
    assert len(set(expected)) == len(names)
