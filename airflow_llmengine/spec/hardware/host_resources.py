"""What a worker's node must have beside GPUs: cores, memory and disk, from the size of the model."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from airflow_llmengine.spec.hardware.gpus import GIB
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig

CORES_OF_ENGINE = 2
"""The process that reads, tokenizes and writes, and the engine's scheduler; each rank has another core."""

MEMORY_OF_ENGINE = 4 * GIB
MEMORY_OF_RANK = 4 * GIB
"""PyTorch and CUDA's libraries in a process of its own, and weights on their way to the GPU."""

CPU_KV_CACHE = 4 * GIB
"""Where there is no GPU, the KV cache is in memory."""
MOST_CPU_CORES = 16

STORAGE_BESIDE_WEIGHTS = 2 * GIB
"""Tokenizer, compiled kernels, and what the worker itself writes."""


@dataclass(frozen=True, slots=True)
class HostResources:
    """What the pod of one node asks for, where the request gives nothing. Requests, not limits: they are estimates."""

    cores: int
    memory: int
    """Bytes, without the shared memory by which the engine's processes hand each other what they compute."""
    storage: int | None
    """Bytes of disk for the weights; None: they lie somewhere else."""


def swap_bytes(model: CreateBatchCompletionsV1ModelConfig, ranks: int) -> int:
    """Bytes of shared memory that ``swap_space`` takes on a node.

    Args:
        model: What is said of the engine.
        ranks: Processes of the engine on this node, each with a GPU.
    """
    return ceil((model.swap_space or 0) * GIB) * ranks


def host_resources(
    *, ranks: int, checkpoint_bytes: int, nodes: int, weights_on_disk: bool, swap: int = 0
) -> HostResources:
    """For an engine on GPUs.

    With several ranks each reads all files of the checkpoint for its part of every matrix: as much memory as they have
    bytes lets them be read from disk, or over the network, only once. A single rank reads each once anyway.

    Args:
        ranks: Processes of the engine on this node.
        checkpoint_bytes: Of all weights, as stored.
        nodes: Over which the layers are spread.
        weights_on_disk: Whether the pod's own disk takes the weights: they are fetched, and no volume keeps them.
        swap: Bytes of ``swap_space``, of all ranks.
    """
    part = ceil(checkpoint_bytes / nodes)
    return HostResources(
        cores=CORES_OF_ENGINE + ranks,
        memory=_gib(MEMORY_OF_ENGINE + MEMORY_OF_RANK * ranks + (part if ranks > 1 else 0) + swap),
        storage=_gib(checkpoint_bytes + STORAGE_BESIDE_WEIGHTS) if weights_on_disk else None,
    )


def cpu_resources(*, loaded_bytes: int, kv_bytes: int, checkpoint_bytes: int, weights_on_disk: bool) -> HostResources:
    """For an engine on the CPU: weights and KV cache are in memory, and a core for each GiB of weights.

    Args:
        loaded_bytes: Of the weights, as loaded.
        kv_bytes: Of one sequence of ``max_model_len``.
        checkpoint_bytes: Of all weights, as stored.
        weights_on_disk: See ``host_resources``.
    """
    return HostResources(
        cores=min(MOST_CPU_CORES, max(1, round(loaded_bytes / GIB))),
        memory=_gib(loaded_bytes + max(CPU_KV_CACHE, kv_bytes) + MEMORY_OF_ENGINE),
        storage=_gib(checkpoint_bytes + STORAGE_BESIDE_WEIGHTS) if weights_on_disk else None,
    )


def _gib(amount: int) -> int:
    """Rounded up to whole GiB, so that a person can read it."""
    return -(-amount // GIB) * GIB
