"""The Airflow ring's tests work without a metadata database, unless they say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.operators_in_tests import EchoJob, connection


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Worker slots of this test's own: what else runs on the machine does not hold it up."""
    path = tmp_path / "runtime"
    monkeypatch.setenv("AIRFLOW__LLMENGINE__RUNTIME_DIRECTORY", str(path))
    return path


@pytest.fixture
def echo_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EchoJob:
    """A job of twelve records, and a default connection to run it with the stand-in engine."""
    job = EchoJob(tmp_path / "job", [f"row {index}" for index in range(12)])
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(worker_environment=job.environment()))
    return job
