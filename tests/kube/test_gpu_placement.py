from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.gpu_placement import gpu_placement
from airflow_llmengine.spec.request import GpuType
from airflow_llmengine.spec.validation import RequestInvalidError
from tests.kube.pods import built, worker_of

GKE = "cloud.google.com/gke-accelerator"
PARTITION = "cloud.google.com/gke-gpu-partition-size"
INSTANCE = "node.kubernetes.io/instance-type"
PRODUCT = "nvidia.com/gpu.product"
GPU = "nvidia.com/gpu"

G4DN = [f"g4dn.{size}" for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "metal")]
G5 = [
    f"g5.{size}" for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")
]
P5 = ["p5.4xlarge", "p5.48xlarge"]
H100 = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"]
A100 = ["NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"]
A100E = ["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"]

EXPECTED: list[tuple[str, str, str, dict[str, str], dict[str, list[str]]]] = [
    # platform, type, resource, node selector, node affinity
    ("gke", "nvidia-tesla-t4", GPU, {GKE: "nvidia-tesla-t4"}, {}),
    ("gke", "nvidia-ampere-a100", GPU, {GKE: "nvidia-tesla-a100"}, {}),
    ("gke", "nvidia-ampere-a100e", GPU, {GKE: "nvidia-a100-80gb"}, {}),
    ("gke", "nvidia-hopper-h100", GPU, {GKE: "nvidia-h100-80gb"}, {}),
    ("gke", "nvidia-hopper-h100-1g20gb", GPU, {GKE: "nvidia-h100-80gb", PARTITION: "1g.20gb"}, {}),
    ("gke", "nvidia-hopper-h100-3g40gb", GPU, {GKE: "nvidia-h100-80gb", PARTITION: "3g.40gb"}, {}),
    ("eks", "nvidia-tesla-t4", GPU, {}, {INSTANCE: G4DN}),
    ("eks", "nvidia-ampere-a10", GPU, {}, {INSTANCE: G5}),
    ("eks", "nvidia-ampere-a100", GPU, {INSTANCE: "p4d.24xlarge"}, {}),
    ("eks", "nvidia-ampere-a100e", GPU, {INSTANCE: "p4de.24xlarge"}, {}),
    ("eks", "nvidia-hopper-h100", GPU, {}, {INSTANCE: P5}),
    ("eks", "nvidia-hopper-h100-1g20gb", "nvidia.com/mig-1g.20gb", {}, {INSTANCE: P5}),
    ("eks", "nvidia-hopper-h100-3g40gb", "nvidia.com/mig-3g.40gb", {}, {INSTANCE: P5}),
    ("nvidia", "nvidia-tesla-t4", GPU, {PRODUCT: "Tesla-T4"}, {}),
    ("nvidia", "nvidia-ampere-a10", GPU, {}, {PRODUCT: ["NVIDIA-A10", "NVIDIA-A10G"]}),
    ("nvidia", "nvidia-ampere-a100", GPU, {}, {PRODUCT: A100}),
    ("nvidia", "nvidia-ampere-a100e", GPU, {}, {PRODUCT: A100E}),
    ("nvidia", "nvidia-hopper-h100", GPU, {}, {PRODUCT: H100}),
    ("nvidia", "nvidia-hopper-h100-1g20gb", "nvidia.com/mig-1g.20gb", {}, {PRODUCT: H100}),
    ("nvidia", "nvidia-hopper-h100-3g40gb", "nvidia.com/mig-3g.40gb", {}, {PRODUCT: H100}),
]

TAINT = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}


def affinity_of(pod: dict[str, Any]) -> dict[str, list[str]]:
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return {expression["key"]: expression["values"] for term in terms for expression in term["matchExpressions"]}


@pytest.mark.parametrize(("platform", "gpu_type", "resource", "selector", "affinity"), EXPECTED)
def test_each_type_is_found_on_each_platform(
    platform: Any, gpu_type: str, resource: str, selector: dict[str, str], affinity: dict[str, list[str]]
) -> None:
    pod = built(cluster=ClusterSettings(gpu_platform=platform), gpu_type=gpu_type, gpus=2)
    resources = worker_of(pod)["resources"]
    assert resources["limits"] == {resource: "2"}
    assert resources["requests"][resource] == "2"
    assert pod["spec"].get("nodeSelector", {}) == selector
    assert affinity_of(pod) == affinity
    assert pod["spec"]["tolerations"] == [TAINT]


def test_every_type_has_its_place_in_the_expectations() -> None:
    covered = {(platform, gpu_type) for platform, gpu_type, *_ in EXPECTED} | {("gke", "nvidia-ampere-a10")}
    assert covered == {(platform, gpu.value) for platform in ("gke", "eks", "nvidia") for gpu in GpuType}


def test_any_gpu_does_where_no_type_is_asked_for() -> None:
    pod = built()
    assert worker_of(pod)["resources"]["limits"] == {GPU: "1"}
    assert pod["spec"]["tolerations"] == [TAINT]
    assert not {"nodeSelector", "affinity"} & pod["spec"].keys()


def test_a_missing_type_says_what_to_put_into_the_connection() -> None:
    with pytest.raises(RequestInvalidError) as raised:
        gpu_placement(GpuType.NVIDIA_AMPERE_A10, ClusterSettings(gpu_platform="gke"))
    assert str(raised.value) == (
        "gpu_type: GKE has no nvidia-ampere-a10; use another type, or say which nodes have it, in gpu_nodes of the "
        'connection\'s field cluster: {"nvidia-ampere-a10": {"node_selector": {"<label>": "<value>"}}}'
    )


def test_a_type_that_the_platform_lacks_needs_its_nodes_and_not_only_their_taint() -> None:
    only_taint = {"nvidia-ampere-a10": {"tolerations": [{"key": "a10", "operator": "Exists"}]}}
    cluster = ClusterSettings.model_validate({"gpu_platform": "gke", "gpu_nodes": only_taint})
    with pytest.raises(RequestInvalidError, match="GKE has no nvidia-ampere-a10"):
        gpu_placement(GpuType.NVIDIA_AMPERE_A10, cluster)


def test_the_connection_replaces_one_part_of_one_type() -> None:
    cluster = ClusterSettings.model_validate(
        {
            "gpu_platform": "gke",
            "gpu_nodes": {
                "nvidia-hopper-h100": {"node_selector": {GKE: ["nvidia-h100-80gb", "nvidia-h100-mega-80gb"]}},
                "nvidia-hopper-h100-1g20gb": {"resource": "nvidia.com/mig-1g.20gb"},
                "nvidia-ampere-a10": {
                    "node_selector": {"pool": "a10"},
                    "tolerations": [{"key": "pool", "value": "a10", "effect": "NoSchedule"}],
                },
            },
        }
    )
    both = built(cluster=cluster, gpu_type="nvidia-hopper-h100")
    assert affinity_of(both) == {GKE: ["nvidia-h100-80gb", "nvidia-h100-mega-80gb"]}
    assert both["spec"]["tolerations"] == [TAINT]
    a_slice = built(cluster=cluster, gpu_type="nvidia-hopper-h100-1g20gb")
    assert worker_of(a_slice)["resources"]["limits"] == {"nvidia.com/mig-1g.20gb": "1"}
    assert a_slice["spec"]["nodeSelector"] == {GKE: "nvidia-h100-80gb", PARTITION: "1g.20gb"}
    own = built(cluster=cluster, gpu_type="nvidia-ampere-a10")
    assert own["spec"]["nodeSelector"] == {"pool": "a10"}
    assert own["spec"]["tolerations"] == [{"key": "pool", "operator": "Equal", "value": "a10", "effect": "NoSchedule"}]
    assert built(cluster=cluster, gpu_type="nvidia-tesla-t4")["spec"]["nodeSelector"] == {GKE: "nvidia-tesla-t4"}


def test_a_type_that_only_the_cluster_knows_is_found_by_what_it_says() -> None:
    cluster = ClusterSettings.model_validate(
        {
            "gpu_types": [{"type": "nvidia-l40s", "memory": "44Gi"}],
            "gpu_nodes": {"nvidia-l40s": {"node_selector": {PRODUCT: "NVIDIA-L40S"}}},
        }
    )
    placement = gpu_placement("nvidia-l40s", cluster)
    assert placement.resource == GPU
    assert placement.node_labels == {PRODUCT: ("NVIDIA-L40S",)}
    assert [toleration.key for toleration in placement.tolerations] == [GPU]


def test_the_type_that_a_job_asks_for_wins_over_the_label_of_every_job() -> None:
    cluster = ClusterSettings(gpu_platform="gke", node_selector={GKE: "nvidia-l4", "pool": "batch"})
    assert built(cluster=cluster, gpu_type="nvidia-tesla-t4")["spec"]["nodeSelector"] == {
        GKE: "nvidia-tesla-t4",
        "pool": "batch",
    }
    assert built(cluster=cluster)["spec"]["nodeSelector"] == {GKE: "nvidia-l4", "pool": "batch"}
