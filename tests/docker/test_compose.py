"""The laptop's services, as far as that can be seen without a container engine."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from airflow.models.connection import Connection

from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from tests.docker.dockerfiles import DOCKER, ROOT, compose, steps, versions

SERVICES = compose()["services"]
AIRFLOW = SERVICES["airflow"]["environment"]


def has_compose() -> bool:
    """Whether this machine's docker has the compose plugin; a running engine is not needed."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="there is no `docker compose` here")
def test_compose_takes_it() -> None:
    done = subprocess.run(
        ["docker", "compose", "-f", str(DOCKER / "compose.yaml"), "config", "--quiet"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_connection_is_one_of_ours_and_names_the_environment_that_the_image_has() -> None:
    given = Connection.from_json(AIRFLOW["AIRFLOW_CONN_LLMENGINE_DEFAULT"])
    settings = ConnectionSettings.parse("llmengine_default", given.extra_dejson)
    assert settings.launcher == "local"
    assert settings.python == "/opt/llmengine/bin/python"
    assert "-m venv /opt/llmengine\n" in (DOCKER / "cpu-environment.sh").read_text()
    assert f"AIRFLOW_CONN_{settings.storage_conn_id}".upper() in AIRFLOW


def test_the_store_is_the_one_that_runs() -> None:
    store = Connection.from_json(AIRFLOW["AIRFLOW_CONN_STORE"])
    assert store.conn_type == "aws"
    assert (store.login, store.password) == (
        SERVICES["minio"]["environment"]["MINIO_ROOT_USER"],
        SERVICES["minio"]["environment"]["MINIO_ROOT_PASSWORD"],
    )
    assert store.extra_dejson["endpoint_url"] == "http://minio:9000"
    bucket = AIRFLOW["LLMENGINE_EXAMPLE_FOLDER"].removeprefix("s3://")
    assert f"mc mb --ignore-existing store/{bucket}" in SERVICES["bucket"]["command"][0]


def test_what_is_built_is_a_stage_of_the_image_with_the_versions_of_the_one_place() -> None:
    build = SERVICES["airflow"]["build"]
    assert (DOCKER / build["context"]).resolve() == ROOT
    stages = [value for step, value in steps(ROOT / build["dockerfile"]) if step == "FROM"]
    assert any(stage.endswith(f" AS {build['target']}") for stage in stages)
    assert build["args"].items() <= versions().items()
    assert len(build["args"]) == 2


def test_nothing_listens_outside_this_machine_and_folders_exist() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose()["volumes"] or (DOCKER / source).is_dir()


def test_the_example_dags_are_there() -> None:
    assert "../dags:/opt/airflow/dags:ro" in SERVICES["airflow"]["volumes"]
