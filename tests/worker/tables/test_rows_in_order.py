"""However a table is stored and read in pieces: each row is one record, in order, and its cells are what they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmengine.worker.tables import arrow_files, text_files
from tests.worker.tables.table_inputs import opened

SCHEMA = pyarrow.schema(
    [("text", pyarrow.string()), ("number", pyarrow.int64()), ("parts", pyarrow.list_(pyarrow.string()))]
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.none() | TEXTS,
            "number": st.none() | st.integers(-(2**63), 2**63 - 1),
            "parts": st.none() | st.lists(st.none() | TEXTS),
        }
    )
)


@pytest.fixture(scope="module", autouse=True)
def _small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((arrow_files, "MOST_ROWS"), (text_files, "MOST_BATCH_ROWS")):
            patch.setattr(module, name, 3)
        yield


def write(path: Path, rows: list[dict[str, Any]], group_rows: int) -> None:
    table = pyarrow.Table.from_pylist(rows, SCHEMA)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=group_rows)
    elif path.suffix == ".arrow":
        with pyarrow.ipc.new_file(path, SCHEMA) as writer:
            writer.write_table(table, max_chunksize=group_rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
@settings(max_examples=25)
@given(files=st.lists(ROWS, min_size=1, max_size=3), group_rows=st.integers(1, 8))
def test_every_row_is_a_record_in_its_place(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, files: list[list[dict[str, Any]]], group_rows: int
) -> None:
    folder = tmp_path_factory.mktemp("table")
    for number, rows in enumerate(files):
        write(folder / f"{number}.{suffix}", rows, group_rows)
    rows = [row for rows in files for row in rows]
    if suffix == "jsonl" and not rows:
        return
    reader = opened(folder, {"prompt": "{{ row }}", "parameter_columns": {"seed": "number"}})
    records = list(reader.records())
    assert [record.index for record in records] == list(range(len(rows)))
    assert [json.loads(record.value["prompt"]) for record in records] == rows
    assert [record.value.get("seed") for record in records] == [row["number"] for row in rows]
    batches = [batch for file in reader.files for batch in file.batches(["parts", "text"])]
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"parts": row["parts"], "text": row["text"]} for row in rows
    ]
    assert sum(batch.num_rows for file in reader.files for batch in file.batches([])) == len(rows)
