"""Reading a table takes no more memory for a row group of many rows than for one of few."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

ROWS = 100_000
ALLOWED_GROWTH_MB = 80
"""All rows take 200 MB."""

READ = """
import json, resource, sys
from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.table import parse_table
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.readers import open_input

table = parse_table({"prompt": "{{ text }}", "parameters": {"max_tokens": 4}})
request = validate_request(
    {"input_data_path": sys.argv[1], "output_data_path": "/out.parquet", "model_config": {"model": "m"}}, table
)
rows = sum(1 for _record in open_input(Storage(), request, table).records())
print(json.dumps([rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def peak_memory_mb(path: Path, rows: int) -> float:
    schema = pyarrow.schema([("text", pyarrow.string())])
    # One row group, whatever its size.
    with pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        text = pyarrow.array([f"{row} {'word ' * 400}" for row in range(1000)])
        whole = pyarrow.chunked_array([text] * (rows // 1000))
        writer.write_table(pyarrow.table([whole], schema=schema), row_group_size=rows)
    assert pyarrow.parquet.ParquetFile(path).num_row_groups == 1
    return read_memory_mb(path, rows)


def read_memory_mb(path: Path, rows: int) -> float:
    output = subprocess.run([sys.executable, "-c", READ, str(path)], check=True, capture_output=True, text=True).stdout
    read, peak = json.loads(output)
    assert read == rows
    return float(peak)


@pytest.mark.slow
def test_a_large_row_group_takes_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    few = peak_memory_mb(tmp_path / "few.parquet", 1000)
    many = peak_memory_mb(tmp_path / "many.parquet", ROWS)
    (tmp_path / "many.parquet").unlink()
    assert many - few < ALLOWED_GROWTH_MB, f"{few:.0f} MB for a thousand rows, {many:.0f} MB for {ROWS}"


@pytest.mark.slow
def test_a_text_that_a_file_has_once_for_many_rows_is_not_held_for_all_of_them(tmp_path: Path) -> None:
    # A process has a share in the peak of what started it: the rows are not all in memory here either.
    ten = pyarrow.array(["document " * 10_000] * 10)
    peaks = {}
    for rows in (10, 10_000):
        path = tmp_path / f"{rows}.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.chunked_array([ten] * (rows // 10))}), path)
        assert path.stat().st_size < 2**20
        peaks[rows] = read_memory_mb(path, rows)
    # All rows take 900 MB.
    assert peaks[10_000] - peaks[10] < 250, peaks
