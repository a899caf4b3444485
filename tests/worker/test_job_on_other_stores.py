"""A whole job on Google's and on Azure's store, as far as their emulators go: killed, and resumed."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Location, Storage
from tests.storage.azurite import KEY, Azurite
from tests.storage.conftest import _gcs_server, azurite, gcs_server
from tests.storage.gcs_server import GCSServer
from tests.waiting import wait_until
from tests.worker.test_job_on_s3 import start_on

__all__ = ["_gcs_server", "azurite", "gcs_server"]

pytestmark = pytest.mark.slow

RECORDS = 40


class Place:
    """A bucket of its own for one job, and how a worker reaches it."""

    def __init__(self, base: str, options: dict[str, Any], sent: dict[str, Any], environment: dict[str, str]) -> None:
        self.base = base
        self.sent = sent
        self.environment = environment
        self._storage = Storage(options)

    def at(self, name: str) -> Location:
        return self._storage.location(f"{self.base}/{name}")

    def chunks(self) -> int:
        return sum("/chunks/" in name for name in self.at("out/answers.jsonl.job").walk_names())


@pytest.fixture
def google(gcs_server: GCSServer) -> Place:
    """By the options that a launcher sends."""
    options = {"gs": gcs_server.options}
    return Place(f"gs://{gcs_server.new_bucket(f'job-{uuid.uuid4().hex[:12]}')}", options, options, {})


@pytest.fixture
def azure(azurite: Azurite) -> Place:
    """By what the worker's own environment holds."""
    name = azurite.new_container(f"job-{uuid.uuid4().hex[:12]}")
    environment = {"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string}
    return Place(f"az://{name}", {"az": azurite.options}, {}, environment)


@pytest.mark.parametrize("store", ["google", "azure"])
def test_a_killed_job_goes_on_where_it_stopped(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    place: Place = request.getfixturevalue(store)
    lines = [json.dumps({"prompt": f"row {index}", "max_tokens": 4}) for index in range(RECORDS)]
    place.at("in/rows-1.jsonl").replace("\n".join(lines[:15]).encode())
    place.at("in/rows-2.jsonl").replace("\n".join(lines[15:]).encode())

    slow = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.1", "LLMENGINE_ECHO_CAPACITY": "2"}
    worker, pipe = start_on(place.base, place.sent, tmp_path, **place.environment, **slow)
    wait_until(lambda: place.chunks() >= 2)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()
    os.close(pipe)
    committed = place.chunks()
    generated = len((tmp_path / "log").read_text().splitlines())

    worker, pipe = start_on(place.base, place.sent, tmp_path, **place.environment)
    output, log = worker.communicate(timeout=60)
    os.close(pipe)

    assert worker.returncode == ExitCode.DONE, log.decode()
    body = place.at("out/answers.jsonl").read_bytes()
    texts = [json.loads(line)["choices"][0]["text"] for line in body.decode().splitlines()]
    assert [f"row {index}" in text for index, text in enumerate(texts)] == [True] * RECORDS
    manifest = json.loads(output)
    assert (manifest["output_bytes"], bool(manifest["output_etag"])) == (len(body), True)
    assert len((tmp_path / "log").read_text().splitlines()) <= generated + RECORDS - 5 * committed
    assert sorted(place.at("out").walk_names()) == [
        "answers.jsonl",
        "answers.jsonl.job/current.json",
        "answers.jsonl.manifest.json",
    ]
    assert KEY.encode() not in log + output
