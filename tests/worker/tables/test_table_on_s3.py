"""Tables on an object store, over real HTTP."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.readers import InputChangedError
from tests.storage.s3_server import Fault, S3Server
from tests.worker.tables.table_inputs import opened

# Of no other module: buckets stay as long as the process.
BUCKET = "tables-on-s3"
ROWS = 2000


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server.running() as server:
        server.client.create_bucket(Bucket=BUCKET)
        yield server


def put(server: S3Server, key: str, **columns: Any) -> pyarrow.parquet.FileMetaData:
    """Put a Parquet file of several row groups, in which nothing is compressed."""
    file = io.BytesIO()
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, file, row_group_size=500, compression="none", use_dictionary=False)
    server.client.put_object(Bucket=BUCKET, Key=key, Body=file.getvalue())
    return pyarrow.parquet.ParquetFile(file).metadata


def columns(letter: str = "x") -> dict[str, Any]:
    return {
        "blob": [os.urandom(1000) for _row in range(ROWS)],
        "text": [f"{letter}{row} {letter * 100}" for row in range(ROWS)],
        "more": [os.urandom(500).hex() for _row in range(ROWS)],
    }


def stored_bytes(metadata: pyarrow.parquet.FileMetaData, column: int) -> int:
    groups = range(metadata.num_row_groups)
    return sum(metadata.row_group(group).column(column).total_compressed_size for group in groups)


def test_of_a_parquet_file_little_more_is_read_than_the_columns_that_are_used(server: S3Server) -> None:
    metadata = put(server, "wide.parquet", **columns())
    server.reset()
    reader = opened(f"s3://{BUCKET}/wide.parquet", storage=Storage({"s3": server.options}))
    assert [record.value["prompt"] for record in reader.records()] == columns()["text"]
    needed = stored_bytes(metadata, 1)
    assert stored_bytes(metadata, 0) > 8 * needed
    # The footer is read twice: for the columns, and with the rows.
    assert needed <= server.sent[f"/{BUCKET}/wide.parquet"] <= needed + 2 * 2**16


def test_a_cut_connection_is_no_end_of_a_table(server: S3Server) -> None:
    put(server, "cut.parquet", **columns())
    reader = opened(f"s3://{BUCKET}/cut.parquet", storage=Storage({"s3": server.options}))
    server.faults.append(Fault("GET", status=None, path="cut.parquet", times=2))
    assert [record.value["prompt"] for record in reader.records()] == columns()["text"]


def test_an_object_that_is_replaced_in_mid_read_ends_the_job(server: S3Server) -> None:
    put(server, "in/a.parquet", **columns())
    reader = opened(f"s3://{BUCKET}/in/", storage=Storage({"s3": server.options}))
    records = reader.records()
    assert next(records).value["prompt"].startswith("x0 ")
    put(server, "in/a.parquet", **columns("y"))
    with pytest.raises(InputChangedError, match="was changed while the job read it"):
        assert all(record.value["prompt"].startswith("x") for record in records)
