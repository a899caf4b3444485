"""What the operator makes of the pod operator's options, without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import models as k8s

from airflow_llmengine.hooks.llmengine import LLMEngineHook
from tests.airflow.operators_in_tests import EchoJob, connection, run


def a_template(namespace: str) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace}, "spec": {"containers": [{"name": "base", "image": "worker:1"}]}}


@pytest.mark.parametrize(
    ("options", "of_connection", "namespace"),
    [
        ({"namespace": "mine", "pod_template_dict": a_template("template")}, {"namespace": "theirs"}, "mine"),
        ({"pod_template_dict": a_template("template")}, {"namespace": "theirs"}, "template"),
        (
            {"full_pod_spec": k8s.V1Pod(metadata=k8s.V1ObjectMeta(namespace="spec"))},
            {"namespace": "theirs", "pod_template": a_template("their-template")},
            "spec",
        ),
        ({}, {"namespace": "theirs", "pod_template": a_template("their-template")}, "theirs"),
        ({}, {"pod_template": a_template("their-template")}, "their-template"),
        ({}, {}, None),
    ],
)
def test_pods_are_looked_for_where_they_are_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    of_connection: dict[str, Any],
    namespace: str | None,
) -> None:
    given = connection(launcher="kubernetes", image="worker:1", **of_connection)
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", given)
    operator = EchoJob(tmp_path, []).operator(**options)
    operator._apply_connection(LLMEngineHook().settings)
    assert operator.namespace == namespace


def test_a_template_file_names_the_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(launcher="kubernetes", namespace="theirs"))
    (tmp_path / "pod.yaml").write_text("metadata:\n  namespace: file\nspec:\n  containers: []\n")
    operator = EchoJob(tmp_path, []).operator(pod_template_file=str(tmp_path / "pod.yaml"))
    operator._apply_connection(LLMEngineHook().settings)
    assert operator.namespace == "file"


def test_a_local_worker_is_waited_for_in_the_task_whatever_deferrable_says(echo_job: EchoJob) -> None:
    assert run(echo_job.operator(deferrable=True))["records"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("default", ["True", "False"])
def test_whether_tasks_are_deferred_is_airflows_setting(default: str) -> None:
    """It is read when the pod operator is imported, hence a process of its own."""
    program = (
        "from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator as Operator\n"
        "arguments = dict(input_data_path='in.json', output_data_path='out.json', model_config={'model': 'm'})\n"
        "print([Operator(task_id='job', **arguments, **more).deferrable for more in ({}, {'deferrable': True})])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": default},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == [f"[{default}, True]"], done.stderr
