"""What KubernetesPodOperator really builds, as the worker's pod is made from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from kubernetes.client import models as k8s

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.labels import label_refusals
from tests.kube.pods import a_request, build, built, lost, to_manifest, worker_of


def operators_own_pod(**arguments: Any) -> Any:
    task = KubernetesPodOperator(task_id="task", name="llm", namespace="default", **arguments)
    # What it knows of the cluster it is in; it needs no connection otherwise.
    task.__dict__["hook"] = SimpleNamespace(is_in_cluster=False)
    context: Any = {
        "ti": SimpleNamespace(dag_id="dag", task_id="task", map_index=3, try_number=2),
        "run_id": "manual__2026-01-01",
        "dag": SimpleNamespace(parent_dag=SimpleNamespace(dag_id="parent")),
    }
    return task.build_pod_request_obj(context)


def test_every_label_by_which_airflow_finds_pods_is_refused() -> None:
    labels = {*operators_own_pod().metadata.labels, KubernetesPodOperator.POD_CHECKED_KEY}
    assert {"dag_id", "task_id", "run_id", "map_index", "try_number"} < labels
    for key in labels:
        (refusal,) = label_refusals(a_request(labels={key: "x"}))
        assert str(refusal) == f"labels.{key}: Airflow finds its pods by a label of this name; use another key"


def test_a_pod_of_an_operator_without_options_becomes_a_workers_pod() -> None:
    pod = operators_own_pod()
    manifest = built(pod, gpu_type="nvidia-ampere-a10")
    assert list(lost(to_manifest(pod), manifest)) == []
    assert worker_of(manifest)["command"] == ["python", "-m", "airflow_llmengine.worker"]
    assert worker_of(manifest)["image"] == "registry.example/worker:1"
    assert worker_of(manifest)["securityContext"]["runAsUser"] == 1000


def test_every_option_of_the_operator_stands() -> None:
    pod = operators_own_pod(
        image="mine:1",
        cmds=["profile", "python"],
        arguments=["-m", "mine"],
        labels={"team": "a"},
        annotations={"note": "mine"},
        env_vars={"HOME": "/home/me"},
        container_resources=k8s.V1ResourceRequirements(limits={"memory": "3Gi"}, requests={"memory": "2Gi"}),
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
                }
            }
        },
        tolerations=[k8s.V1Toleration(key="mine", operator="Exists")],
        node_selector={"pool": "mine"},
        security_context={"runAsUser": 7, "fsGroup": 8},
        container_security_context={"privileged": False},
        volumes=[k8s.V1Volume(name="mine", empty_dir=k8s.V1EmptyDirVolumeSource())],
        volume_mounts=[k8s.V1VolumeMount(name="mine", mount_path="/tmp")],
        priority_class_name="mine",
        service_account_name="mine",
        termination_grace_period=7,
        active_deadline_seconds=9,
        image_pull_secrets=[k8s.V1LocalObjectReference(name="mine")],
    )
    manifest = built(pod, cluster=ClusterSettings(gpu_platform="eks"), gpu_type="nvidia-ampere-a10", memory="64Gi")
    assert list(lost(to_manifest(pod), manifest)) == []


@pytest.mark.parametrize("key", ["team", "app.kubernetes.io/name"])
def test_the_operators_own_labels_stay_its_selector(key: str) -> None:
    assert build(operators_own_pod(labels={key: "a"})).metadata.labels[key] == "a"
