"""A store with checkpoints, and a cache to fetch them into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.retrying import RetryPolicy
from airflow_llmengine.worker.weights import file_fetch
from tests.storage.s3_server import S3Server
from tests.worker.weights.checkpoints import RANGE

QUICK = RetryPolicy(attempts=8, total_seconds=20, first_wait_seconds=0.01, longest_wait_seconds=0.05)


@pytest.fixture(scope="session")
def _server() -> Iterator[S3Server]:
    with S3Server.running() as server:
        yield server


@pytest.fixture
def server(_server: S3Server) -> Iterator[S3Server]:
    _server.reset()
    yield _server
    _server.reset()


@pytest.fixture(scope="session")
def storage(_server: S3Server) -> Storage:
    return Storage({"s3": _server.options}, retry=QUICK)


@pytest.fixture(scope="session")
def bucket(_server: S3Server, storage: Storage) -> str:
    """One for all tests: the store's library takes a second to begin with, for each."""
    name = _server.new_bucket()
    list(storage.location(f"s3://{name}").walk())
    return name


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of fetched checkpoints; ranges are small."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LLMENGINE_MODEL_CACHE", str(folder))
    monkeypatch.setattr(file_fetch, "RANGE_BYTES", RANGE)
    return folder
