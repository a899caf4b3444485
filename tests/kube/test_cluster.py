from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from airflow_llmengine.kube.cluster import ClusterSettings, Toleration
from airflow_llmengine.kube.volume_source import volume_from_source


def fault(**fields: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        ClusterSettings.model_validate(fields)
    (line,) = raised.value.errors(include_url=False, include_input=False)
    where = ".".join(str(step) for step in line["loc"])
    return f"{where}: {line['msg'].removeprefix('Value error, ')}"


def test_a_form_gives_text() -> None:
    settings = ClusterSettings.model_validate(
        {
            "gpu_nodes": '{"nvidia-tesla-t4": {"node_selector": {"pool": "t4"}}}',
            "image_pull_secrets": "one, two",
            "cache_volume": '{"persistentVolumeClaim": {"claimName": "weights"}}',
            "node_selector": '{"pool": "batch"}',
            "tolerations": '[{"key": "spot", "operator": "Exists", "tolerationSeconds": 30, "effect": "NoExecute"}]',
        }
    )
    same = ClusterSettings.model_validate(
        {
            "gpu_nodes": {"nvidia-tesla-t4": {"node_selector": {"pool": "t4"}}},
            "image_pull_secrets": ["one", "two"],
            "cache_volume": {"persistentVolumeClaim": {"claimName": "weights"}},
            "node_selector": {"pool": "batch"},
            "tolerations": [Toleration(key="spot", operator="Exists", toleration_seconds=30, effect="NoExecute")],
        }
    )
    assert settings == same


@pytest.mark.parametrize(
    ("text", "name_and_key"), [(None, None), ("hub", ("hub", "token")), ("hub/HF_TOKEN", ("hub", "HF_TOKEN"))]
)
def test_the_hubs_token_has_a_secret_and_a_key(text: str | None, name_and_key: tuple[str, str] | None) -> None:
    assert ClusterSettings(hugging_face_secret=text).hugging_face_key == name_and_key


def test_a_claims_name_is_a_volume() -> None:
    volume = volume_from_source("cache", "weights")
    assert volume.persistent_volume_claim.claim_name == "weights"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"accelerator": "tpu"}, "accelerator: Input should be 'gpu' or 'none'"),
        ({"gpu_platform": "aks"}, "gpu_platform: Input should be 'gke', 'eks' or 'nvidia'"),
        ({"service_account_name": "Batch"}, "service_account_name: 'Batch' may hold only lower-case letters"),
        ({"credentials_secret": "a_b"}, "credentials_secret: 'a_b' may hold only lower-case letters"),
        ({"hugging_face_secret": "hub/a b"}, "hugging_face_secret: the key after the '/' may hold only letters"),
        ({"hugging_face_secret": "hub/"}, "hugging_face_secret: the key after the '/' may hold only letters"),
        ({"hugging_face_secret": "/token"}, "hugging_face_secret: '' is empty: name a Secret"),
        ({"image_pull_secrets": "one,,two"}, "image_pull_secrets: '' is empty: name Secrets"),
        ({"image_pull_secrets": "[one]"}, "image_pull_secrets: is not JSON: Expecting value in line 1, column 2"),
        ({"queue": "Q"}, "queue: 'Q' may hold only lower-case letters"),
        ({"queue": "q" * 64}, "63 are allowed: name a LocalQueue of Kueue"),
        ({"cache_path": "cache"}, "cache_path: must be an absolute path"),
        ({"cache_path": "/a/../b"}, "cache_path: must be an absolute path"),
        ({"cache_path": "/tmp"}, "cache_path: /tmp is where the worker has volumes of its own"),
        ({"cache_path": "/dev/shm"}, "cache_path: /dev/shm is where the worker has volumes of its own"),
        ({"cache_volume": "Weights"}, "cache_volume: 'Weights' may hold only lower-case letters"),
        ({"cache_volume": {}}, "cache_volume: must be one volume source"),
        ({"cache_volume": {"nfs": {}, "csi": {}}}, "cache_volume: must be one volume source"),
        ({"cache_volume": {"nsf": {}}}, "cache_volume: Kubernetes has no volume source 'nsf': did you mean nfs?"),
        ({"cache_volume": {"name": "x"}}, "cache_volume: Kubernetes has no volume source 'name'"),
        ({"cache_volume": {"nfs": "x"}}, "cache_volume: nfs must be an object"),
        ({"cache_volume": {"nfs": {"path": "/"}}}, "cache_volume: nfs is not complete: Invalid value for `server`"),
        (
            {"cache_volume": {"persistentVolumeClaim": {"claimName": "w", "readonly": True}}},
            "cache_volume: persistentVolumeClaim.readonly is no field of it that Kubernetes reads",
        ),
        ({"node_selector": {"a b": "c"}}, "node_selector: the key 'a b' may hold only letters"),
        ({"node_selector": {"a": "b c"}}, "node_selector: a: the value 'b c' may hold only letters"),
        ({"node_selector": "pool=gpu"}, "node_selector: is not JSON"),
        ({"tolerations": [{"key": "a", "operator": "In"}]}, "tolerations.0.operator: Input should be"),
        ({"tolerations": [{"effect": "NoSchedule"}]}, "tolerations.0: without a key the operator must be Exists"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "tolerations.0: has a value beside"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}, "tolerations.0: tolerationSeconds is for"),
        ({"tolerations": [{"key": "a b"}]}, "tolerations.0: the key 'a b' may hold only"),
        ({"tolerations": [{"key": "a", "value": "b c"}]}, "tolerations.0: the value 'b c' may hold only"),
        ({"gpu_nodes": {"h100": {}}}, "gpu_nodes.h100.[key]: Input should be 'nvidia-tesla-t4'"),
        (
            {"gpu_nodes": {"nvidia-tesla-t4": {"resource": "gpu"}}},
            "gpu_nodes.nvidia-tesla-t4.resource: 'gpu' has no domain before a '/'",
        ),
        (
            {"gpu_nodes": {"nvidia-tesla-t4": {"node_selector": {"pool": []}}}},
            "gpu_nodes.nvidia-tesla-t4.node_selector: pool has no value",
        ),
        (
            {"gpu_nodes": {"nvidia-tesla-t4": {"selector": {}}}},
            "gpu_nodes.nvidia-tesla-t4: selector is not a field of it; did you mean node_selector?",
        ),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_with_the_field_and_what_to_use(
    fields: dict[str, Any], message: str
) -> None:
    assert message in fault(**fields)


def test_reading_a_connection_does_not_import_the_kubernetes_client() -> None:
    program = (
        "import sys, airflow_llmengine.kube.cluster as c; c.ClusterSettings(cache_volume='weights');"
        "print([name for name in sys.modules if name.split('.')[0] in ('airflow', 'kubernetes')])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout.replace("'", '"')) == []
