"""Reading from an object store, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.readers import InputChangedError, InputReader, open_input
from tests.storage.s3_server import Fault, S3Server
from tests.worker.readers.files import json_lines, request_for, values, zstd

# Of no other module: buckets stay as long as the process.
BUCKET = "reader-on-s3"
RECORDS = [{"prompt": f"{number} {'x' * 1000}"} for number in range(1000)]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server.running() as server:
        server.client.create_bucket(Bucket=BUCKET)
        yield server


def put(server: S3Server, key: str, data: bytes) -> None:
    server.client.put_object(Bucket=BUCKET, Key=key, Body=data)


def opened(server: S3Server, key: str) -> InputReader:
    return open_input(Storage({"s3": server.options}), request_for(f"s3://{BUCKET}/{key}"))


def test_a_prefix_is_read_and_a_replaced_object_noticed(server: S3Server) -> None:
    put(server, "in/a.jsonl", zstd(json_lines(*RECORDS[:600])))
    put(server, "in/b/c.json", json.dumps(RECORDS[600:]).encode())
    put(server, "in/_SUCCESS", b"")
    reader = opened(server, "in/")
    assert values(reader.records()) == RECORDS
    reader.check_unchanged()
    put(server, "in/b/c.json", json.dumps(RECORDS[601:]).encode())
    with pytest.raises(InputChangedError, match=rf"s3://{BUCKET}/in was changed while the job read it"):
        reader.check_unchanged()


def test_a_cut_connection_is_no_end_of_the_input(server: S3Server) -> None:
    put(server, "lines", json_lines(*RECORDS))
    reader = opened(server, "lines")
    server.faults.append(Fault("GET", status=None, path="lines", times=2))
    assert values(reader.records()) == RECORDS


def test_an_object_that_is_replaced_in_mid_read_ends_the_job(server: S3Server) -> None:
    long = json_lines(*RECORDS) * 30
    put(server, "long", long)
    records = opened(server, "long").records()
    assert next(records).value == RECORDS[0]
    put(server, "long", long.replace(b"x", b"y"))
    with pytest.raises(InputChangedError, match="was changed while the job read it"):
        assert all("y" not in record.value["prompt"] for record in records)
