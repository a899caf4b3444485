"""docs/first_cluster_job.md, followed: its own commands, from nothing to the output of three replicas.

What is not done as it says there: Airflow is that of the tests, the image is the tests', namespace and Secret are made
by the API, and what it says of `airflow standalone` is left out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, Code, code
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.host_python import IMAGE, ROOT, HostPython
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(600)]

CONNECTION = "AIRFLOW_CONN_LLMENGINE_DEFAULT"
RECORDS = 2400

PAGE = DOCS / "first_cluster_job.md"


def commands(containing: str) -> str:
    """The one piece of shell of the page with this in it."""
    (found,) = [sample for sample in code(PAGE, "sh") if containing in sample.source]
    return found.source


def secret_of_the_page() -> tuple[str, dict[str, str]]:
    """Its name, and its keys with the values that the page's variables have here."""
    text = commands("create secret generic")
    (name,) = re.findall(r"create secret generic (\S+)", text)
    return name, {key: os.path.expandvars(value) for key, value in re.findall(r"--from-literal=(\w+)=(\S+)", text)}


@pytest.fixture
def variables(
    cluster: Cluster, tmp_path: Path, s3_for_pods: S3Server, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What a reader sets first."""
    own = {
        "KUBECONFIG": cluster.kubeconfig,
        "IMAGE": IMAGE,
        "BUCKET": s3_for_pods.new_bucket(),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_for_pods.endpoint,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return own


def set_by_reader(sample: Code) -> set[str]:
    return set(re.findall(r"\b([A-Z_]+)=", sample.source)) - {"AIRFLOW_HOME"}


def follow(text: str) -> str:
    """Run commands as a reader's shell does; gives what they print."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_reader_gets_the_output_of_three_replicas(
    cluster: Cluster, namespace: str, s3_for_pods: S3Server, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set_by_reader(code(PAGE, "sh")[0]) <= variables.keys()
    name, values = secret_of_the_page()
    assert values == {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    cluster.core.create_namespaced_secret(namespace, {"metadata": {"name": name}, "stringData": values})

    follow("airflow db migrate")
    pods = HostPython()
    ours = {"namespace": namespace, "python": pods.python, "pod_template": pods.pod_template()}
    connections = f"{commands('AIRFLOW_CONN_LAKE')}\n{commands(CONNECTION)}\n"
    for line in follow(f"{connections}\nenv -0 | tr '\\n\\0' ' \\n' | grep ^AIRFLOW_CONN_").splitlines():
        variable, _, value = line.partition("=")
        connection = json.loads(value)
        if variable == CONNECTION:
            assert connection["extra"]["namespace"] == "llm"
            assert connection["extra"]["cluster"]["credentials_secret"] == name
            connection["extra"] |= ours
        monkeypatch.setenv(variable, json.dumps(connection))
    assert "success" in follow(commands("airflow connections test"))

    follow(commands("fsspec.filesystem('s3').pipe"))
    # In the triggerer, in which progress is told.
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    printed = follow(commands("airflow dags test llmengine_replicas"))
    assert "3 replicas share the records" in printed
    assert f"of {RECORDS} records done" in printed, "progress is told while the task is deferred"
    assert f"{RECORDS} records, 0 failed, in s3://" in printed
    assert not cluster.pods(namespace)

    find, status = commands("llmengine-batch status").splitlines()
    output = follow(find).split()[-1]
    (run,) = re.findall(r"/headlines/([^/]+)/headlines\.jsonl", output)
    assert f"done       {RECORDS} records, failed: none" in follow(status.replace("RUN", run))
    body = s3_for_pods.client.get_object(Bucket=variables["BUCKET"], Key=f"headlines/{run}/headlines.jsonl")["Body"]
    assert len(body.read().splitlines()) == RECORDS
