"""What of ``model_config`` today's vLLM, or this version of the worker, can't bring about.

A field that is accepted and then ignored would be a defect, so each that has no effect is refused, with what to use
instead. A value that asks for nothing (``enable_auto_tool_choice: false``) is no reason to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_llmengine.spec.check_paths import checkpoint_refusals
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig
from airflow_llmengine.spec.validation import Refusal
from airflow_llmengine.spec.wire_faults import shown_number

_GONE = {
    "max_seq_len_to_capture": (
        "vLLM no longer has it, and what came after it counts tokens of a batch, not of a sequence",
        "leave it out; to run without CUDA graphs, give enforce_eager: true",
    ),
    "quantization_param_path": (
        "vLLM no longer has it: the scales of an FP8 KV cache come with the checkpoint",
        "use a checkpoint that holds them, and cache_dtype: fp8",
    ),
    "override_neuron_config": (
        "vLLM no longer has it: the Neuron device is a plugin with settings of its own",
        "leave it out",
    ),
    "swap_space": (
        "vLLM no longer swaps sequences to CPU memory: it computes them again",
        "leave it out; if sequences are preempted often, lower max_num_seqs",
    ),
}

_NOT_YET = {
    "limit_mm_per_prompt": "",
    "rope_scaling": {},
    "skip_tokenizer_init": False,
    "mm_processor_kwargs": {},
    "tool_call_parser": None,
    "enable_auto_tool_choice": False,
    "response_role": "assistant",
}
"""Fields that a later version brings, each with the value that asks for nothing."""

_AT_LEAST_ONE = (
    "max_num_seqs",
    "pipeline_parallel_size",
    "tensor_parallel_size",
    "max_num_batched_tokens",
    "block_size",
    "num_gpu_blocks_override",
)

_NOT_EMPTY = ("model", "checkpoint_path", "served_model_name", "tokenizer", "revision")

_SAME = (("num_shards", "tensor_parallel_size"), ("max_context_length", "max_model_len"))
"""Names of one thing, the contract's own first and vLLM's second."""


def model_refusals(model: CreateBatchCompletionsV1ModelConfig) -> Iterator[Refusal]:
    """Refuse what contradicts itself, what is out of bounds, and what would have no effect."""
    for older, newer in _SAME:
        if model.is_given(older) and model.is_given(newer) and getattr(model, older) != getattr(model, newer):
            values = [shown_number(getattr(model, name)) for name in (older, newer)]
            reason = f"is {values[0]}, but {newer}, which means the same, is {values[1]}"
            yield Refusal(f"model_config.{older}", reason, "give one of the two")
    yield from _bound_refusals(model)
    for name, (reason, remedy) in _GONE.items():
        if model.is_given(name):
            yield Refusal(f"model_config.{name}", reason, remedy)
    for name, no_effect in _NOT_YET.items():
        if model.is_given(name) and getattr(model, name) != no_effect:
            yield Refusal(f"model_config.{name}", "not supported yet", "leave it out")


def _bound_refusals(model: CreateBatchCompletionsV1ModelConfig) -> Iterator[Refusal]:
    for name in _NOT_EMPTY:
        if model.is_given(name) and not getattr(model, name).strip():
            yield Refusal(f"model_config.{name}", "is empty")
    for name in type(model).model_fields:
        value = getattr(model, name)
        # They are told in logs, line by line.
        if isinstance(value, str) and name != "chat_template" and not value.isprintable():
            yield Refusal(f"model_config.{name}", "has control characters in it", "leave them out")
    if model.checkpoint_path is not None and model.checkpoint_path.strip() and model.checkpoint_path.isprintable():
        yield from checkpoint_refusals("model_config.checkpoint_path", model.checkpoint_path)
    if "://" in model.model and model.checkpoint_path is None:
        reason = "is a URL, and is taken for an id of the Hugging Face hub"
        yield Refusal("model_config.model", reason, "give the URL as checkpoint_path, and a name here")
    if model.tokenizer is not None and "://" in model.tokenizer:
        remedy = "put its files beside the checkpoint's, or give a directory or an id of the hub"
        yield Refusal("model_config.tokenizer", "can't be fetched from a URL", remedy)
    for name in _AT_LEAST_ONE:
        if model.is_given(name) and getattr(model, name) < 1:
            yield Refusal(f"model_config.{name}", f"must be at least 1, not {shown_number(getattr(model, name))}")
    if model.max_model_len is not None and model.max_model_len < 1 and model.max_model_len != -1:
        reason = f"must be at least 1, or -1 for what the memory allows, not {shown_number(model.max_model_len)}"
        yield Refusal("model_config.max_model_len", reason)
    share = model.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        yield Refusal(
            "model_config.gpu_memory_utilization", f"must be above 0 and at most 1, not {shown_number(share)}"
        )
