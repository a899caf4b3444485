"""The example DAGs on a cluster, unchanged: only the connection is another one, and where their data is.

The replicas are those of ``test_first_job_page``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.operators_in_tests import connection
from tests.airflow.test_example_dags import dags_test
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.host_python import IMAGE, ROOT, HostPython
from tests.kubernetes.jobs_on_s3 import aws_connection
from tests.storage.s3_server import S3Server

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
    # Where the user of the pods may read it: in the home folder of root, where the cache is, it may not.
    model = home / "model"
    model.symlink_to(quickstart_model)
    pods = HostPython(shared=(shared_folder,), read=(model, ROOT / "dags"))
    printed = dags_test(
        home,
        "llmengine_quickstart",
        AIRFLOW_CONN_LLMENGINE_DEFAULT=on_cluster(namespace, pods, engine="vllm"),
        LLMENGINE_QUICKSTART_FOLDER=str(shared_folder),
        LLMENGINE_QUICKSTART_MODEL=str(model),
    )
    found = answers(shared_folder)
    assert len(found) == len(REVIEWS.read_text().splitlines())
    assert all(answer["choices"][0]["message"]["content"] for answer in found)
    assert "24 records, 0 of them failed" in printed
    assert not cluster.pods(namespace)


@pytest.fixture
def lake(s3_for_pods: S3Server) -> Bucket:
    """A bucket with the reviews in it."""
    name = s3_for_pods.new_bucket()
    s3_for_pods.client.put_object(Bucket=name, Key="reviews.jsonl", Body=REVIEWS.read_bytes())
    return Bucket(s3_for_pods, name)


@dataclass(frozen=True)
class Bucket:
    """Where an example's input and output are; Airflow's storage connection leads there, and pods are handed it."""

    s3: S3Server
    name: str

    def environment(self, namespace: str, pods: HostPython) -> dict[str, str]:
        """For ``dags_test``."""
        handed_over = {"storage_conn_id": "store", "pod_credentials": "connection"}
        return {
            "AIRFLOW_CONN_LLMENGINE_DEFAULT": on_cluster(namespace, pods, **handed_over),
            "AIRFLOW_CONN_STORE": aws_connection(self.s3),
            "LLMENGINE_EXAMPLE_INPUT": f"s3://{self.name}/reviews.jsonl",
            "LLMENGINE_EXAMPLE_FOLDER": f"s3://{self.name}/out",
        }

    def answers(self) -> list[Any]:
        listed = self.s3.client.list_objects_v2(Bucket=self.name, Prefix="out/")["Contents"]
        (key,) = (each["Key"] for each in listed if each["Key"].endswith("/headlines.jsonl"))
        lines = self.s3.client.get_object(Bucket=self.name, Key=key)["Body"].read().splitlines()
        return [json.loads(line) for line in lines]


@pytest.mark.timeout(300)
def test_a_pod_that_no_task_waits_for(cluster: Cluster, namespace: str, lake: Bucket, home: Path) -> None:
    printed = dags_test(home, "llmengine_launch_and_wait", **lake.environment(namespace, HostPython()))
    assert len(lake.answers()) == 24
    assert "24 records, 0 failed, in " in printed
    assert not cluster.pods(namespace)
