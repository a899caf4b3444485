"""Stores to test against."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.storage.retrying import RetryPolicy
from tests.storage.azurite import Azurite, find_azurite
from tests.storage.gcs_server import GCSServer
from tests.storage.s3_server import S3Server

QUICK = RetryPolicy(attempts=4, total_seconds=10, first_wait_seconds=0.01, longest_wait_seconds=0.05)

BUCKET = "bucket"

_numbers = itertools.count()


@dataclass(frozen=True)
class Place:
    """Somewhere to put files, empty at first."""

    storage: Storage
    base: str

    def at(self, name: str) -> Location:
        return self.storage.location(f"{self.base}/{name}")

    def put(self, *names: str) -> None:
        """Files whose content is their own name."""
        for name in names:
            self.at(name).replace(name.encode())


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3Server]:
    with S3Server.running() as server:
        server.client.create_bucket(Bucket=BUCKET)
        yield server


@pytest.fixture(scope="session")
def _s3_storage(_s3_server: S3Server) -> Storage:
    # One for all tests: its library takes half a second to begin with.
    storage = Storage({"s3": _s3_server.options}, retry=QUICK)
    storage.location(f"s3://{BUCKET}/first").require_commits()
    return storage


@pytest.fixture(scope="session")
def _gcs_server() -> Iterator[GCSServer]:
    server = GCSServer()
    server.start()
    server.new_bucket(BUCKET)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _gcs_storage(_gcs_server: GCSServer) -> Storage:
    storage = Storage({"gs": _gcs_server.options}, retry=QUICK)
    storage.location(f"gs://{BUCKET}/first").require_commits()
    return storage


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """Azure's emulator, with a container."""
    program = find_azurite()
    if program is None:
        pytest.skip("Azure is not tried: npm install --prefix ~/.cache/airflow-llmengine/azurite azurite")
    server = Azurite(program)
    server.new_container(BUCKET)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _azure_storage(azurite: Azurite) -> Storage:
    storage = Storage({"az": azurite.options}, retry=QUICK)
    storage.location(f"az://{BUCKET}/first").require_commits()
    return storage


@pytest.fixture
def s3_server(_s3_server: S3Server) -> Iterator[S3Server]:
    """S3 without faults yet."""
    _s3_server.reset()
    yield _s3_server
    _s3_server.reset()


@pytest.fixture
def s3(s3_server: S3Server, _s3_storage: Storage) -> Place:
    """A new folder in a bucket. The store has proven already that it can commit."""
    return Place(_s3_storage, f"s3://{BUCKET}/folder-{next(_numbers)}")


@pytest.fixture
def gcs_server(_gcs_server: GCSServer) -> Iterator[GCSServer]:
    """Google's store without faults yet."""
    _gcs_server.reset()
    yield _gcs_server
    _gcs_server.reset()


@pytest.fixture
def gcs(gcs_server: GCSServer, _gcs_storage: Storage) -> Place:
    """A new folder in a bucket of Google's store, which is reached through fsspec's common interface."""
    return Place(_gcs_storage, f"gs://{BUCKET}/folder-{next(_numbers)}")


@pytest.fixture
def azure(_azure_storage: Storage) -> Place:
    """The same in a container of Azure's."""
    return Place(_azure_storage, f"az://{BUCKET}/folder-{next(_numbers)}")


@pytest.fixture
def local(tmp_path: Path) -> Place:
    """A new folder."""
    return Place(Storage(retry=QUICK), str(tmp_path))


@pytest.fixture
def memory() -> Place:
    """A new folder in memory."""
    return Place(Storage(retry=QUICK), f"memory://folder-{next(_numbers)}")


@pytest.fixture
def unused_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(params=["local", "memory", "s3", "gcs", "azure"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each kind of store in turn."""
    found: Place = request.getfixturevalue(request.param)
    return found
