"""How the GPUs of a worker may share a model: what tensor and pipeline parallelism vLLM takes for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from airflow_llmengine.spec.hardware.model_facts import ModelFacts
from airflow_llmengine.spec.hardware.quantization import Quantization

_VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """What a request says of it; None where it says nothing."""

    tensor: int | None = None
    pipeline: int | None = None
    nodes: int = 1
    gpus: int | None = None
    """On each node."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How many GPUs there are, and what each is for."""

    nodes: int
    gpus: int
    """On each node."""
    tensor: int
    pipeline: int


class LayoutError(ValueError):
    """The GPUs can't share the model so; the message says which numbers do not go together."""


def tensor_parallel_fault(facts: ModelFacts, quantization: Quantization | None, size: int) -> str | None:
    """Why so many ranks can't share a layer; None if they can.

    vLLM divides attention heads, vocabulary and the inner size of the MLPs without a rest; it copies KV heads where
    there are fewer than ranks; and a rank's part of a quantized matrix must end where a group of weights ends.
    """
    if facts.heads % size:
        return f"{facts.heads} attention heads can't be shared by {size} GPUs"
    if facts.latent is None and facts.kv_heads % size and size % facts.kv_heads:
        return f"{facts.kv_heads} KV heads can't be shared by {size} GPUs"
    if -(-facts.vocabulary // _VOCABULARY_PADDING) * _VOCABULARY_PADDING % size:
        return f"a vocabulary of {facts.vocabulary} can't be shared by {size} GPUs"
    for what, inner, quantized in _inner_sizes(facts, quantization):
        if inner % size:
            return f"{what} of {inner} can't be shared by {size} GPUs"
        multiple = quantization.multiple if quantization is not None and quantized else 1
        if size > 1 and inner % multiple == 0 and (inner // size) % multiple:
            return (
                f"{what} of {inner}, quantized in groups of {multiple}, can't be shared by {size} GPUs: "
                f"{inner // size} is no multiple of {multiple}"
            )
    return None


def _inner_sizes(facts: ModelFacts, quantization: Quantization | None) -> Iterator[tuple[str, int, bool]]:
    everything = quantization is not None and quantization.parts == "all"
    if facts.mixture is None or facts.mixture.layers < facts.layers:
        yield "an intermediate_size", facts.intermediate_size, everything
    if facts.mixture is not None:
        yield "experts with an intermediate_size", facts.mixture.intermediate_size, quantization is not None


def layout_of(
    asked: Parallelism, gpus: int, facts: ModelFacts | None, quantization: Quantization | None = None
) -> Layout:
    """Lay a model out on ``gpus`` GPUs of each node, so that none is idle.

    Where the request says nothing of tensor parallelism, it is as large as the model allows, within a node; pipeline
    stages are for the rest, and for further nodes, as NCCL between nodes is too slow for the former.

    Args:
        asked: What the request says.
        gpus: GPUs of each node.
        facts: The model; None: not known, and then every number is taken to be right.
        quantization: How it is quantized once it is loaded.

    Raises:
        LayoutError: They can't share it.
    """
    total = gpus * asked.nodes
    tensor, pipeline = asked.tensor, asked.pipeline
    if tensor is None and pipeline is not None:
        tensor = _divided(total, pipeline, "pipeline_parallel_size", asked.nodes, gpus)
    if tensor is None:
        tensor = _largest_tensor(gpus, facts, quantization)
    if pipeline is None:
        pipeline = _divided(total, tensor, "tensor_parallel_size", asked.nodes, gpus)
    if tensor * pipeline != total:
        raise LayoutError(
            f"tensor_parallel_size {tensor} times pipeline_parallel_size {pipeline} needs {tensor * pipeline} GPUs, "
            f"and there are {_counted(asked.nodes, gpus)}"
        )
    fault = facts and tensor_parallel_fault(facts, quantization, tensor)
    if fault:
        raise LayoutError(fault)
    if facts is not None and pipeline > facts.layers:
        raise LayoutError(f"{facts.layers} layers can't be shared by {pipeline} pipeline stages")
    return Layout(asked.nodes, gpus, tensor, pipeline)


def _divided(total: int, size: int, name: str, nodes: int, gpus: int) -> int:
    if total % size:
        raise LayoutError(f"{name} is {size}, and there are {_counted(nodes, gpus)}, which it does not divide")
    return total // size


def _counted(nodes: int, gpus: int) -> str:
    return f"{gpus} GPUs" if nodes == 1 else f"{gpus} GPUs on each of {nodes} nodes"


def _largest_tensor(gpus: int, facts: ModelFacts | None, quantization: Quantization | None) -> int:
    divisors = (size for size in range(gpus, 0, -1) if gpus % size == 0)
    if facts is None:
        return next(divisors)
    return next((size for size in divisors if tensor_parallel_fault(facts, quantization, size) is None), 1)


def gpu_counts(asked: Parallelism, most: int) -> list[int]:
    """Numbers of GPUs on a node to try, in order: what the request says, or powers of two.

    Args:
        asked: What the request says.
        most: The most that a node has; what follows from the request alone may be more.
    """
    if asked.gpus is not None:
        return [asked.gpus]
    if asked.tensor is not None:
        # Stages that were not asked for are one for each node.
        return [max(1, asked.tensor * (asked.pipeline or asked.nodes) // asked.nodes)]
    step = 1 if asked.pipeline is None else asked.pipeline // gcd(asked.pipeline, asked.nodes)
    return [step * 2**power for power in range(11) if step * 2**power <= most]
