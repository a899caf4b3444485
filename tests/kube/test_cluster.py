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


def test_the_clusters_gpus_are_names_or_objects_and_keep_their_order() -> None:
    nodes = {"nvidia-l40s": {"node_selector": {"pool": "l40s"}}}
    l40s = {"type": "nvidia-l40s", "memory": "44Gi", "max_per_node": 4, "price": 1.8}
    listed = ClusterSettings.model_validate(
        {"gpu_types": ["nvidia-ampere-a10", l40s, {"type": "nvidia-hopper-h100", "memory": "93Gi"}], "gpu_nodes": nodes}
    )
    as_text = json.dumps([each.model_dump(exclude_none=True) for each in listed.gpu_types])
    assert ClusterSettings.model_validate({"gpu_types": as_text, "gpu_nodes": json.dumps(nodes)}) == listed
    a10, other, h100 = listed.gpus
    assert (a10.name, a10.memory, a10.per_node, a10.price) == ("nvidia-ampere-a10", 22 * 2**30, 8, None)
    assert (other.name, other.memory, other.per_node, other.price) == ("nvidia-l40s", 44 * 2**30, 4, 1.8)
    # An H100 NVL: what the cluster says of a known type goes before what is known of it.
    assert (h100.memory, h100.capability) == (93 * 2**30, 9.0)
    names = ClusterSettings.model_validate({"gpu_types": "nvidia-tesla-t4, nvidia-ampere-a10"})
    assert [gpu.name for gpu in names.gpus] == ["nvidia-tesla-t4", "nvidia-ampere-a10"]
    assert ClusterSettings().gpus == ()


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
        ({"gpu_nodes": {"h100": {}}}, "gpu_nodes.h100: is no type of GPU: it may be one of nvidia-tesla-t4, "),
        (
            {"gpu_nodes": {"nvidia-telsa-t4": {}}},
            "gpu_nodes.nvidia-telsa-t4: is no type of GPU: did you mean nvidia-te",
        ),
        ({"gpu_types": "nvidia-ampere-a10, h100"}, "gpu_types.1: h100 is no type that is known: give its memory"),
        ({"gpu_types": ["nvidia-hoper-h100"]}, "is no type that is known: did you mean nvidia-hopper-h100?"),
        ({"gpu_types": [{"type": "l4", "memory": "24"}]}, "gpu_types.0: l4: memory is less than 1Gi: give the unit"),
        ({"gpu_types": [{"type": "l4", "memory": "24gb"}]}, "gpu_types.0.memory: '24gb' is not a Kubernetes quantity"),
        ({"gpu_types": [{"type": "L4", "memory": "24Gi"}]}, "gpu_types.0: the type must be lower-case letters"),
        ({"gpu_types": [{"type": "l4", "max": 4}]}, "gpu_types.0: max is not a field of it"),
        (
            {"gpu_types": [{"type": "l4", "memory": "22Gi", "max_per_node": 0}]},
            "gpu_types.0.max_per_node: Input should",
        ),
        ({"gpu_types": [{"type": "l4", "memory": "22Gi", "price": 0}]}, "gpu_types.0.price: Input should be greater"),
        ({"gpu_types": "[nvidia"}, "gpu_types: is not JSON: Expecting value in line 1, column 2"),
        ({"gpu_types": "nvidia-tesla-t4,nvidia-tesla-t4"}, "nvidia-tesla-t4 is listed twice: name each type once"),
        (
            {"gpu_types": [{"type": "nvidia-l4", "memory": "22Gi"}]},
            'gpu_types: which nodes have nvidia-l4 is not known: say it in gpu_nodes: {"nvidia-l4": {"node_selector',
        ),
        (
            {"gpu_types": [{"type": "nvidia-l4", "memory": "22Gi"}], "gpu_nodes": {"nvidia-l4": {"tolerations": []}}},
            "gpu_types: which nodes have nvidia-l4 is not known",
        ),
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
