"""What a worker's container asks for: cores, memory, disk, GPUs, and shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.gpu_placement import GpuPlacement, gpu_placement
from airflow_llmengine.spec.hardware.host_resources import swap_bytes
from airflow_llmengine.spec.hardware.inference import Hardware
from airflow_llmengine.spec.kubernetes_syntax import parse_quantity
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import Refusal, RequestInvalidError

Role = Literal["replica", "collect"]
"""``replica``: a worker with an engine. ``collect``: puts finished shares together, without an engine."""

GIB = 2**30

CPUS_PER_GPU = 4
"""Cores asked for with each GPU where the model's size is not known: the engine's own process, one for each rank,
tokenizing and reading ahead."""
MEMORY_PER_GPU = 16 * GIB
"""Host memory asked for with each GPU, likewise: weights pass through it while they are loaded."""
CPUS_WITHOUT_GPU = 1
MEMORY_WITHOUT_GPU = 4 * GIB
COLLECT_CPUS = "500m"
COLLECT_MEMORY = GIB
"""Shares are put together in a stream."""


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """Quantities of one container, as Kubernetes writes them."""

    requests: dict[str, str]
    limits: dict[str, str] = field(default_factory=dict)
    ranks: int = 0
    """Processes of the engine that compute; 0: there is no engine."""
    swap: int = 0
    """Bytes of ``swap_space``, of all ranks."""
    gpus: int = 0
    placement: GpuPlacement | None = None
    """Where the GPUs are; None: there are none."""


def worker_resources(
    request: CreateBatchCompletionsV1Request, cluster: ClusterSettings, role: Role, hardware: Hardware | None = None
) -> WorkerResources:
    """Work out what a container needs.

    What the request gives is both request and limit, and is kept as it is. What it does not give is what was worked
    out for the model, or else a modest default, and a request only: a limit that was guessed would kill a model that
    the guess does not fit.

    Args:
        request: The job, completed with what was worked out.
        cluster: How pods are made.
        role: What the container does.
        hardware: What was worked out for the model; None: nothing was.

    Raises:
        RequestInvalidError: The platform has no such GPU, or the memory that is given does not hold ``swap_space``.
    """
    if role == "collect":
        return WorkerResources({"cpu": COLLECT_CPUS, "memory": _bytes(COLLECT_MEMORY)})
    ranks = worker_ranks(request)
    with_gpus = cluster.accelerator == "gpu"
    gpus = (request.gpus or ranks) if with_gpus else 0
    gpu_type = hardware.gpu.name if hardware and hardware.gpu else request.gpu_type
    placement = gpu_placement(gpu_type, cluster) if with_gpus else None
    given = {
        name: str(value)
        for name, value in (("cpu", request.cpus), ("memory", request.memory), ("ephemeral-storage", request.storage))
        if value is not None
    }
    swap = swap_bytes(request.model_cfg, ranks)
    memory = None if request.memory is None else parse_quantity(str(request.memory))
    if swap and memory is not None and swap >= memory:
        reason = f"{request.memory} does not hold the swap_space of {_bytes(swap)} for {ranks} GPUs"
        raise RequestInvalidError([Refusal("memory", reason, "give more, or leave one of them out")])
    defaults = _defaults(ranks, gpus, hardware, swap)
    devices = {placement.resource: str(gpus)} if placement else {}
    return WorkerResources({**defaults, **given, **devices}, {**given, **devices}, ranks, swap, gpus, placement)


def _defaults(ranks: int, gpus: int, hardware: Hardware | None, swap: int) -> dict[str, str]:
    host = hardware and hardware.host
    shared = shared_memory(ranks, None)
    if host:
        storage = {} if host.storage is None else {"ephemeral-storage": _bytes(host.storage)}
        return {"cpu": str(host.cores), "memory": _bytes(host.memory + shared), **storage}
    return {
        "cpu": str(CPUS_PER_GPU * gpus if gpus else CPUS_WITHOUT_GPU),
        "memory": _bytes((MEMORY_PER_GPU * gpus if gpus else MEMORY_WITHOUT_GPU) + shared + swap),
    }


def worker_ranks(request: CreateBatchCompletionsV1Request) -> int:
    """Processes of the engine that compute on a node, each on a GPU of its own.

    They are tensor parallel times pipeline parallel, over all nodes of a replica.
    """
    model, nodes = request.model_cfg, request.nodes_per_worker or 1
    tensor = model.tensor_parallel_size or model.num_shards or 1
    return max(1, tensor * (model.pipeline_parallel_size or nodes) // nodes)


def shared_memory(ranks: int, memory_limit: str | None, swap: int = 0) -> int:
    """Most bytes of ``/dev/shm``.

    The engine's processes hand each other tensors and messages through it, and NCCL its buffers where GPUs can't reach
    one another directly; the 64 MiB that a container has otherwise end in a bus error. 1 GiB for each rank and one
    for the engine itself is what deployments of vLLM give; only what is written takes memory. It counts as memory of
    the container, so where that has a limit it is at most half of what ``swap_space`` leaves, which vLLM keeps there
    too, and takes at once.

    Args:
        ranks: Processes of the engine that compute.
        memory_limit: The limit of the container as a quantity; None: none.
        swap: Bytes of ``swap_space``, of all ranks.
    """
    wanted = (1 + ranks) * GIB
    limit = None if memory_limit is None else parse_quantity(memory_limit)
    return swap + (wanted if limit is None else max(1, min(wanted, int((limit - swap) / 2))))


def _bytes(amount: int) -> str:
    """As a quantity, in the largest unit that keeps it whole: ``2Gi``."""
    for suffix, unit in (("Gi", GIB), ("Mi", 2**20)):
        if amount % unit == 0:
            return f"{amount // unit}{suffix}"
    return str(amount)


def shared_memory_quantity(ranks: int, memory_limit: str | None, swap: int = 0) -> str:
    """``shared_memory`` as Kubernetes writes it."""
    return _bytes(shared_memory(ranks, memory_limit, swap))
