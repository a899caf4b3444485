"""The example DAGs on a cluster, unchanged: only the connection is another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.operators_in_tests import connection
from tests.airflow.test_example_dags import dags_test
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.host_python import IMAGE, ROOT, HostPython

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

REVIEWS = ROOT / "dags" / "data" / "customer_reviews.jsonl"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "airflow"
    folder.mkdir()
    return folder


def on_cluster(namespace: str, pods: HostPython, **extra: Any) -> str:
    """A connection whose workers are pods with this machine's Python."""
    return connection(
        launcher="kubernetes",
        image=IMAGE,
        python=pods.python,
        namespace=namespace,
        pod_template=pods.pod_template(),
        cluster={"accelerator": "none"},
        **extra,
    )


def answers(folder: Path) -> list[dict[str, Any]]:
    (output,) = folder.glob("*/headlines.jsonl")
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_quickstart_with_a_real_model(
    cluster: Cluster, namespace: str, shared_folder: Path, home: Path, quickstart_model: Path
) -> None:
    pods = HostPython(shared=(shared_folder,), read=(quickstart_model, ROOT / "dags"))
    printed = dags_test(
        home,
        "llmengine_quickstart",
        AIRFLOW_CONN_LLMENGINE_DEFAULT=on_cluster(namespace, pods, engine="vllm"),
        LLMENGINE_QUICKSTART_FOLDER=str(shared_folder),
        LLMENGINE_QUICKSTART_MODEL=str(quickstart_model),
    )
    found = answers(shared_folder)
    assert len(found) == len(REVIEWS.read_text().splitlines())
    assert all(answer["choices"][0]["message"]["content"] for answer in found)
    assert "24 records, 0 of them failed" in printed
    assert not cluster.pods(namespace)


@pytest.mark.timeout(600)
def test_the_replicas_deferred(cluster: Cluster, namespace: str, shared_folder: Path, home: Path) -> None:
    pods = HostPython(shared=(shared_folder,), read=(ROOT / "dags",))
    printed = dags_test(
        home,
        "llmengine_replicas",
        AIRFLOW_CONN_LLMENGINE_DEFAULT=on_cluster(namespace, pods),
        AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE="True",
        LLMENGINE_EXAMPLE_FOLDER=str(shared_folder),
    )
    assert len(answers(shared_folder)) == 24
    assert "of 24 records done" in printed, "progress is told while the task is deferred"
    assert not cluster.pods(namespace)


@pytest.mark.timeout(300)
def test_a_pod_that_no_task_waits_for(cluster: Cluster, namespace: str, shared_folder: Path, home: Path) -> None:
    pods = HostPython(shared=(shared_folder,), read=(ROOT / "dags",))
    printed = dags_test(
        home,
        "llmengine_launch_and_wait",
        AIRFLOW_CONN_LLMENGINE_DEFAULT=on_cluster(namespace, pods),
        LLMENGINE_EXAMPLE_FOLDER=str(shared_folder),
    )
    assert len(answers(shared_folder)) == 24
    assert "24 records, 0 failed, in " in printed
    assert not cluster.pods(namespace)
