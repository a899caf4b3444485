"""Pods for the tests of what is made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
from kubernetes.client import ApiClient, V1Pod

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.labels import identity_annotations
from airflow_llmengine.kube.worker_pod import WorkerIdentity, WorkerStart, worker_pod
from airflow_llmengine.kube.worker_resources import Role
from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.hardware.inference import Hardware
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request

CONTAINER = "base"
VERSIONS = ("1.35", "1.36", "1.37")
"""Kubernetes' versions that are maintained now."""

HANDLE = JobHandle(path="s3://bucket/out.jsonl", fingerprint="0123456789abcdef", generation=2)
START = WorkerStart(
    command=["python", "-m", "airflow_llmengine.worker"],
    arguments=["run", "env:LLMENGINE_REQUEST", "--launched"],
    environment={"LLMENGINE_REQUEST": "{}", "LLMENGINE_ENGINE": "vllm", "TOKENIZERS_PARALLELISM": "false"},
    image="registry.example/worker:1",
)
DEADLINE_SECONDS = 3600
GRACE_SECONDS = 60


def a_request(**fields: Any) -> CreateBatchCompletionsV1Request:
    """A valid request with these fields."""
    least = {"input_data_path": "s3://bucket/in.jsonl", "output_data_path": HANDLE.path, "model_config": {"model": "m"}}
    return validate_request({**least, **fields})


def operators_pod(**spec: Any) -> dict[str, Any]:
    """A pod, as a manifest, much as KubernetesPodOperator builds it when it is given nothing."""
    labels = {"dag_id": "dag", "task_id": "task", "run_id": "run", "kubernetes_pod_operator": "True", "try_number": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "task-abc", "namespace": "default", "labels": labels},
        "spec": {"containers": [{"name": CONTAINER}], "restartPolicy": "Never", **spec},
    }


def from_manifest(manifest: Mapping[str, Any]) -> V1Pod:
    """The client's model of a pod."""
    return ApiClient().deserialize(SimpleNamespace(data=json.dumps(manifest)), "V1Pod")


def to_manifest(model: Any) -> dict[str, Any]:
    """What the client would send."""
    manifest: dict[str, Any] = ApiClient().sanitize_for_serialization(model)
    return manifest


def build(
    pod: V1Pod | Mapping[str, Any] | None = None,
    *,
    cluster: ClusterSettings | None = None,
    role: Role = "replica",
    start: WorkerStart = START,
    hardware: Hardware | None = None,
    **fields: Any,
) -> V1Pod:
    """A worker's pod, for a request with these fields."""
    manifest = operators_pod() if pod is None else pod
    return worker_pod(
        manifest if isinstance(manifest, V1Pod) else from_manifest(manifest),
        container=CONTAINER,
        request=a_request(**fields),
        cluster=cluster or ClusterSettings(),
        identity=WorkerIdentity(role, identity_annotations(HANDLE, series="series", replica=0)),
        start=start,
        deadline_seconds=DEADLINE_SECONDS,
        grace_seconds=GRACE_SECONDS,
        hardware=hardware,
    )


def built(pod: V1Pod | Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """A worker's pod as a manifest that every maintained version of Kubernetes takes."""
    manifest = to_manifest(build(pod, **options))
    require_valid(manifest)
    return manifest


def worker_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's container in a manifest."""
    container: dict[str, Any] = next(each for each in pod["spec"]["containers"] if each["name"] == CONTAINER)
    return container


def environment_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's variables by name; those from elsewhere as what says where from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in worker_of(pod).get("env", [])}


def mounts_of(pod: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the worker has mounted: volumes by path."""
    volumes = {each["name"]: each for each in pod["spec"].get("volumes", [])}
    return {each["mountPath"]: volumes[each["name"]] for each in worker_of(pod).get("volumeMounts", [])}


def require_valid(manifest: dict[str, Any], versions: tuple[str, ...] = VERSIONS) -> None:
    """Fail unless the manifest keeps to the schema of these versions of Kubernetes."""
    for version in versions:
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


def lost(given: Any, result: Any, path: str = "") -> Iterator[str]:
    """Paths of what was given and is not in the result as it was. What was added is no loss, nor is what was empty."""
    if isinstance(given, Mapping) and isinstance(result, Mapping):
        for key, value in given.items():
            yield from lost(value, result.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(result, list) and len(given) <= len(result):
        for index, value in enumerate(given):
            yield from lost(value, result[index], f"{path}[{index}]")
    elif given != result and given not in ({}, []):
        yield path
