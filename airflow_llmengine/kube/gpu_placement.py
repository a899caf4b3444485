"""Which nodes have which GPU, and under what name a pod asks for it.

Sources, as of 2026:

- GKE labels nodes ``cloud.google.com/gke-accelerator`` with the accelerator's name, and a partitioned node also
  ``cloud.google.com/gke-gpu-partition-size``; a slice is asked for as ``nvidia.com/gpu``. Node auto-provisioning reads
  these labels from a pod's node selector, so each type has one value here: the A3 Mega's H100
  (``nvidia-h100-mega-80gb``) is for ``gpu_nodes``. GKE has no A10.
- Every node of EKS (managed node group, Karpenter, Auto Mode) has ``node.kubernetes.io/instance-type``; labels by the
  GPU's name differ between them. EC2's A10 is the A10G of G5. Slices are made by NVIDIA's device plugin.
- NVIDIA's GPU feature discovery labels nodes ``nvidia.com/gpu.product`` with the name that the driver gives, spaces
  replaced. Under the MIG strategy "mixed" the label stays the whole GPU's, and each kind of slice is a resource of its
  own. A GPU that is shared by time slicing has a label with ``-SHARED``, and is not taken: an engine fills a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_llmengine.kube.cluster import ClusterSettings, Toleration
from airflow_llmengine.spec.request import GpuType
from airflow_llmengine.spec.validation import Refusal, RequestInvalidError

WHOLE_GPU = "nvidia.com/gpu"
"""What NVIDIA's device plugin, and GKE's, call a GPU."""

GPU_TAINT = Toleration(key=WHOLE_GPU, operator="Exists", effect="NoSchedule")
"""The taint that keeps pods without GPUs off GPU nodes: GKE sets it, and others by convention."""

_GKE_ACCELERATOR = "cloud.google.com/gke-accelerator"
_GKE_PARTITION = "cloud.google.com/gke-gpu-partition-size"
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_PRODUCT = "nvidia.com/gpu.product"

_SLICES = {
    GpuType.NVIDIA_HOPPER_H100_1G20GB: "1g.20gb",
    GpuType.NVIDIA_HOPPER_H100_3G40GB: "3g.40gb",
}

_GKE = {
    GpuType.NVIDIA_TESLA_T4: "nvidia-tesla-t4",
    GpuType.NVIDIA_AMPERE_A100: "nvidia-tesla-a100",
    GpuType.NVIDIA_AMPERE_A100E: "nvidia-a100-80gb",
    GpuType.NVIDIA_HOPPER_H100: "nvidia-h100-80gb",
}

_EKS = {
    GpuType.NVIDIA_TESLA_T4: tuple(
        f"g4dn.{size}" for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "metal")
    ),
    GpuType.NVIDIA_AMPERE_A10: tuple(
        f"g5.{size}"
        for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")
    ),
    GpuType.NVIDIA_AMPERE_A100: ("p4d.24xlarge",),
    GpuType.NVIDIA_AMPERE_A100E: ("p4de.24xlarge",),
    GpuType.NVIDIA_HOPPER_H100: ("p5.4xlarge", "p5.48xlarge"),
}

_NVIDIA = {
    GpuType.NVIDIA_TESLA_T4: ("Tesla-T4",),
    GpuType.NVIDIA_AMPERE_A10: ("NVIDIA-A10", "NVIDIA-A10G"),
    GpuType.NVIDIA_AMPERE_A100: ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"),
    GpuType.NVIDIA_AMPERE_A100E: ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"),
    GpuType.NVIDIA_HOPPER_H100: ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"),
}


@dataclass(frozen=True, slots=True)
class GpuPlacement:
    """How a pod gets its GPUs."""

    resource: str
    """The extended resource that its container asks for."""
    node_labels: Mapping[str, tuple[str, ...]]
    """Labels of the nodes, each with the values of which a node must have one. Empty: any node with the resource."""
    tolerations: tuple[Toleration, ...]


ANY_GPU = GpuPlacement(WHOLE_GPU, {}, (GPU_TAINT,))
"""A GPU of whatever type."""


def gpu_placement(gpu_type: str | None, cluster: ClusterSettings) -> GpuPlacement:
    """Look up how a pod gets GPUs of a type, in the platform's table and what the cluster says otherwise.

    Args:
        gpu_type: The type: that of a request, or another that the cluster lists; None: any.
        cluster: The platform, and what differs from its table.

    Raises:
        RequestInvalidError: The platform has no such GPU, and the cluster does not say which nodes have it.
    """
    if gpu_type is None:
        return ANY_GPU
    known = next((each for each in GpuType if each.value == gpu_type), None)
    table = None if known is None else _from_table(known, cluster.gpu_platform)
    override = cluster.gpu_nodes.get(gpu_type)
    if override is not None and (table is not None or override.node_selector or override.resource):
        table = table or ANY_GPU
        selector = override.node_selector
        return GpuPlacement(
            resource=override.resource or table.resource,
            node_labels=table.node_labels
            if selector is None
            else {key: (value,) if isinstance(value, str) else value for key, value in selector.items()},
            tolerations=table.tolerations if override.tolerations is None else override.tolerations,
        )
    if table is None:
        raise RequestInvalidError([_unknown(gpu_type, cluster)])
    return table


def _from_table(gpu_type: GpuType, platform: str) -> GpuPlacement | None:
    size = _SLICES.get(gpu_type)
    whole = GpuType.NVIDIA_HOPPER_H100 if size else gpu_type
    if platform == "gke":
        if whole not in _GKE:
            return None
        labels = {_GKE_ACCELERATOR: (_GKE[whole],)} | ({_GKE_PARTITION: (size,)} if size else {})
        return GpuPlacement(WHOLE_GPU, labels, (GPU_TAINT,))
    label, values = (_INSTANCE_TYPE, _EKS[whole]) if platform == "eks" else (_PRODUCT, _NVIDIA[whole])
    return GpuPlacement(f"nvidia.com/mig-{size}" if size else WHOLE_GPU, {label: values}, (GPU_TAINT,))


def _unknown(gpu_type: str, cluster: ClusterSettings) -> Refusal:
    platform = cluster.gpu_platform.upper()
    example = f'{{"{gpu_type}": {{"node_selector": {{"<label>": "<value>"}}}}}}'
    return Refusal(
        "gpu_type",
        f"{platform} has no {gpu_type}",
        f"use another type, or say which nodes have it, in gpu_nodes of the connection's field cluster: {example}",
    )
