"""Whether a model fits GPUs: what vLLM fills each one's memory with.

vLLM takes ``gpu_memory_utilization`` of the memory, loads the weights, runs one step of ``max_num_batched_tokens`` to
see what that takes, and makes the KV cache of what is left. It does not start where that holds less than one sequence
of ``max_model_len``.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmengine.spec.hardware.gpus import GIB, Gpu
from airflow_llmengine.spec.hardware.kv_cache import kv_cache, wanted_bytes
from airflow_llmengine.spec.hardware.layout import Layout
from airflow_llmengine.spec.hardware.model_facts import ModelFacts
from airflow_llmengine.spec.hardware.quantization import Quantization, requested_quantization
from airflow_llmengine.spec.hardware.weights import rank_bytes
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig
from airflow_llmengine.spec.rope_scaling import scaled_length

MEMORY_UTILIZATION = 0.92
"""vLLM's own default of ``gpu_memory_utilization`` (0.32)."""

FIXED_BYTES = int(1.5 * GIB)
"""Of each GPU: CUDA's context, kernels' workspaces, CUDA graphs, and what the allocator can't use."""

COMMUNICATION_BYTES = GIB // 2
"""More of each GPU where several share a model: NCCL's and vLLM's own buffers."""

_LARGE_GPU = 70 * GIB
"""From here on vLLM takes larger steps, but not on an A100."""

_FLOAT32 = 4
_CACHE_BYTES = {"float32": 4.0, "fp8": 1.0, "int8": 1.0}
_DTYPE_BYTES = {"float32": 4, "float": 4}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What of a request the memory depends on, with vLLM's defaults."""

    quantization: Quantization | None
    plain_bytes: int
    """Of a weight that is not quantized, and of an activation."""
    cache_bytes: float
    """Of a number in the KV cache."""
    max_length: int
    starts_short: bool
    """Whether vLLM lowers ``max_model_len`` to what fits (-1)."""
    max_sequences: int | None
    step_tokens: int | None
    utilization: float
    bfloat16: bool
    """Whether the request insists on bfloat16."""


def engine_settings(model: CreateBatchCompletionsV1ModelConfig, facts: ModelFacts) -> EngineSettings:
    """Read them from ``model_config`` and the model."""
    quantization = facts.quantization
    if model.quantization:
        quantization = requested_quantization(model.quantization, quantization)
    plain = _DTYPE_BYTES.get((model.dtype or "auto").lower(), 2)
    cache = (model.cache_dtype or "auto").lower()
    asked = model.max_model_len or model.max_context_length
    return EngineSettings(
        quantization=quantization,
        plain_bytes=plain,
        cache_bytes=next((size for name, size in _CACHE_BYTES.items() if cache.startswith(name)), float(plain)),
        max_length=_longest(model, facts) if asked is None or asked < 1 else asked,
        starts_short=asked == -1,
        max_sequences=model.max_num_seqs,
        step_tokens=model.max_num_batched_tokens,
        utilization=model.gpu_memory_utilization or MEMORY_UTILIZATION,
        bfloat16=(model.dtype or "").lower() == "bfloat16",
    )


def _longest(model: CreateBatchCompletionsV1ModelConfig, facts: ModelFacts) -> int:
    """What vLLM takes as ``max_model_len`` by itself."""
    return scaled_length(model.rope_scaling, facts.max_length) if model.rope_scaling else facts.max_length


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model fills the GPU that has most to hold, of those that share it. All in bytes, of that one GPU."""

    gpu: Gpu
    layout: Layout
    budget: int
    """What vLLM may take."""
    weights: int
    reserve: int
    """What it needs to compute."""
    needed: int
    """Of KV cache for one sequence of ``max_model_len``: without it vLLM does not start."""
    wanted: int
    """Of KV cache for a batch: see ``kv_cache.WANTED_SEQUENCES``. At least what is needed."""
    max_length: int
    longest: int
    """Tokens of the longest sequence that the room holds."""

    @property
    def room(self) -> int:
        """What is left for the KV cache; below 0: the weights alone do not fit."""
        return self.budget - self.weights - self.reserve

    @property
    def starts(self) -> bool:
        """Whether vLLM starts."""
        return self.room >= self.needed

    @property
    def might_start(self) -> bool:
        """Whether vLLM could start if computing took nothing: what it takes is an estimate, and rather too high."""
        return self.budget - self.weights >= self.needed

    @property
    def fits(self) -> bool:
        """Whether a batch has the room that it wants."""
        return self.room >= self.wanted


def fit(facts: ModelFacts, settings: EngineSettings, gpu: Gpu, layout: Layout) -> Fit:
    """Work out how a model fills a GPU in a layout."""
    weights = rank_bytes(
        facts,
        settings.quantization,
        tensor_parallel=layout.tensor,
        pipeline_parallel=layout.pipeline,
        plain_bytes=settings.plain_bytes,
    )
    large = gpu.memory >= _LARGE_GPU and not gpu.name.startswith("nvidia-ampere-a100")
    step = settings.step_tokens or (16384 if large else 8192)
    sequences = settings.max_sequences or (1024 if large else 256)
    cache = kv_cache(
        facts,
        number_bytes=settings.cache_bytes,
        tensor_parallel=layout.tensor,
        pipeline_parallel=layout.pipeline,
        step_tokens=step,
    )
    reserve = FIXED_BYTES + (COMMUNICATION_BYTES if layout.tensor * layout.pipeline > 1 else 0)
    reserve += _activations(facts, step, layout.tensor, settings.plain_bytes)
    # Of the last token of each sequence, three times: as they come, as probabilities, and sorted.
    reserve += 3 * _FLOAT32 * min(sequences, step) * facts.vocabulary
    budget = int(gpu.memory * settings.utilization)
    needed = cache.sequence(1 if settings.starts_short else settings.max_length)
    return Fit(
        gpu=gpu,
        layout=layout,
        budget=budget,
        weights=weights,
        reserve=reserve,
        needed=needed,
        wanted=max(needed, wanted_bytes(cache, settings.max_length, settings.max_sequences)),
        max_length=settings.max_length,
        longest=cache.longest(budget - weights - reserve),
    )


def _activations(facts: ModelFacts, tokens: int, ranks: int, number_bytes: int) -> int:
    """Bytes that a step holds at its peak: the residual and its like, whole on each rank, and the MLP's inner part.

    Of a mixture each token is there once for each of its experts.
    """
    inner = 3 * facts.intermediate_size // ranks
    if facts.mixture is not None:
        each = facts.hidden_size + 3 * facts.mixture.intermediate_size // ranks
        inner = max(inner, facts.mixture.experts_per_token * each)
    return tokens * (4 * facts.hidden_size + inner) * number_bytes


def capability_fault(settings: EngineSettings, gpu: Gpu) -> str | None:
    """Why a GPU can't compute with the weights; None if it can, as far as is known."""
    if gpu.capability is None:
        return None
    if settings.bfloat16 and gpu.capability < 8.0:
        return f"it has no bfloat16, which dtype asks for (compute capability {gpu.capability}, from 8.0 on)"
    quantization = settings.quantization
    if quantization is not None and gpu.capability < quantization.capability:
        return (
            f"it can't compute with {quantization.method} (compute capability {gpu.capability}, "
            f"from {quantization.capability} on)"
        )
    return None
