"""The Airflow ring's tests work without a metadata database, unless they say otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.airflow.operators_in_tests import EchoJob, connection


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Worker slots of this test's own: what else runs on the machine does not hold it up."""
    path = tmp_path / "runtime"
    monkeypatch.setenv("AIRFLOW__LLMENGINE__RUNTIME_DIRECTORY", str(path))
    return path


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A metadata database, to be copied."""
    home = tmp_path_factory.mktemp("airflow")
    environment = os.environ | {"AIRFLOW_HOME": str(home)}
    airflow = str(Path(sys.executable).parent / "airflow")
    subprocess.run([airflow, "db", "migrate"], env=environment, check=True, capture_output=True)
    return (home / "airflow.db").read_bytes()


@pytest.fixture
def airflow_environment(tmp_path: Path, migrated_database: bytes) -> dict[str, str]:
    """For processes of an Airflow of this test's own, with the DAGs of the tests."""
    home = tmp_path / "airflow"
    home.mkdir()
    (home / "airflow.db").write_bytes(migrated_database)
    return os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }


@pytest.fixture
def echo_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EchoJob:
    """A job of twelve records, and a default connection to run it with the stand-in engine."""
    job = EchoJob(tmp_path / "job", [f"row {index}" for index in range(12)])
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(worker_environment=job.environment()))
    return job
