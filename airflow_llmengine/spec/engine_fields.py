"""What becomes of every field of ``model_config``: the one table that ``check``, the worker and the docs read.

The names of arguments are those of the vLLM that is tested; ``tests/engine/test_engine_fields.py`` holds them to the
installed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Becomes(StrEnum):
    """What a field turns into."""

    ARGUMENT = "argument"
    """The argument of vLLM that ``argument`` names, unchanged."""
    TRANSLATED = "translated"
    """The argument of vLLM that ``argument`` names, with another value: the sentence says which."""
    OURS = "ours"
    """Nothing of vLLM's own by that name: the sentence says what the worker makes of it."""
    REFUSED = "refused"
    """``check`` refuses it: the sentence says why, and ``remedy`` what to use instead."""


@dataclass(frozen=True, slots=True)
class EngineField:
    """What becomes of one field."""

    name: str
    """By its name in ``model_config``."""
    becomes: Becomes
    sentence: str
    """For a person: what it does, or why it is refused. Without a full stop."""
    argument: str | None = None
    """The argument of ``vllm serve`` that carries it, by its Python name; None: none does."""
    remedy: str | None = None
    """What to use instead; of refused fields only."""

    @property
    def is_renamed(self) -> bool:
        """Whether vLLM has the very same setting under another name."""
        return self.becomes is Becomes.ARGUMENT and self.argument != self.name


def _same(name: str, sentence: str) -> EngineField:
    return EngineField(name, Becomes.ARGUMENT, sentence, argument=name)


def _renamed(name: str, argument: str, sentence: str) -> EngineField:
    return EngineField(name, Becomes.ARGUMENT, sentence, argument=argument)


def _translated(name: str, argument: str, sentence: str) -> EngineField:
    return EngineField(name, Becomes.TRANSLATED, sentence, argument=argument)


def _ours(name: str, sentence: str, argument: str | None = None) -> EngineField:
    return EngineField(name, Becomes.OURS, sentence, argument=argument)


def _refused(name: str, reason: str, remedy: str) -> EngineField:
    return EngineField(name, Becomes.REFUSED, reason, remedy=remedy)


ENGINE_FIELDS: tuple[EngineField, ...] = (
    _same("max_model_len", "longest sequence, prompt and completion, in tokens; -1 for what the memory allows"),
    _same("max_num_seqs", "most sequences at once"),
    _same("enforce_eager", "no CUDA graphs"),
    _same("trust_remote_code", "code that comes with the model may run"),
    _same("pipeline_parallel_size", "pipeline stages; worked out from the GPUs where it is not given"),
    _same("tensor_parallel_size", "GPUs that share each layer; worked out from the GPUs where it is not given"),
    _same("quantization", "how the weights are quantized, where the model's own config does not say"),
    _translated(
        "disable_log_requests",
        "enable_log_requests",
        "its negation: vLLM logs no requests unless told to; false logs the parameters of each, texts such as stop "
        "among them",
    ),
    _same("chat_template", "Jinja template of chat records instead of the model's own, letter for letter"),
    _same(
        "tool_call_parser",
        "how tool calls are read out of a chat completion: one of the installed vLLM's parsers; needs "
        "enable_auto_tool_choice",
    ),
    _same("enable_auto_tool_choice", "the model may decide by itself to call a tool; needs tool_call_parser"),
    _same("load_format", "format of the weights"),
    _same("config_format", "format of the model's config"),
    _same("tokenizer_mode", "which implementation of the tokenizer"),
    _translated(
        "limit_mm_per_prompt",
        "limit_mm_per_prompt",
        "an object there: image=2,video=1 or JSON; refused for a model that takes text only",
    ),
    _same("max_num_batched_tokens", "most tokens in one step of the engine"),
    _translated("tokenizer", "tokenizer", "the folder to which it was fetched"),
    _same("dtype", "data type of weights and activations"),
    _same("seed", "seed of the engine"),
    _same("revision", "branch, tag or commit of the model; the worker fetches that one; refused with checkpoint_path"),
    _same("code_revision", "branch, tag or commit of the code that comes with the model; needs trust_remote_code"),
    _translated(
        "rope_scaling",
        "hf_overrides",
        "rope_parameters in it, with the model's own base (rope_theta) where none is given",
    ),
    _same(
        "tokenizer_revision",
        "branch, tag or commit of the tokenizer, or of the model for its tokenizer; the worker fetches that one; "
        "refused with checkpoint_path, unless tokenizer is given",
    ),
    _refused(
        "quantization_param_path",
        "vLLM no longer has it: the scales of an FP8 KV cache come with the checkpoint",
        "use a checkpoint that holds them, and cache_dtype: fp8",
    ),
    _refused(
        "max_seq_len_to_capture",
        "vLLM no longer has it, and what came after it counts tokens of a batch, not of a sequence",
        "leave it out; to run without CUDA graphs, give enforce_eager: true; to bound them, give "
        "max_cudagraph_capture_size in engine_args",
    ),
    _same("disable_sliding_window", "the model's sliding attention window is off"),
    _same(
        "skip_tokenizer_init",
        "no tokenizer: records bring token ids and results carry token_ids, their text is empty; V1 and chat records "
        "are refused",
    ),
    _same("served_model_name", "another name of the model, which records may use and results show"),
    _refused(
        "override_neuron_config",
        "vLLM no longer has it: the Neuron device is a plugin with settings of its own",
        "leave it out; what the plugin takes goes into additional_config in engine_args",
    ),
    _same("mm_processor_kwargs", "arguments of the multimodal processor; refused for a model that takes text only"),
    _same("block_size", "tokens in one block of the KV cache"),
    _same("gpu_memory_utilization", "share of the GPU's memory that the engine may take, above 0 to 1"),
    _translated(
        "swap_space",
        "kv_offloading_size",
        "GiB of memory for each GPU in which the KV cache of sequences that had to make room is kept, instead of "
        "computing it again: times the number of GPUs there; added to the pod's memory and to its /dev/shm; refused "
        "without GPUs and with nodes_per_worker above 1",
    ),
    _renamed("cache_dtype", "kv_cache_dtype", "data type of the KV cache"),
    _same("num_gpu_blocks_override", "number of KV cache blocks, instead of what the engine measures"),
    _same("enable_prefix_caching", "the KV cache of shared prefixes is kept"),
    _ours("model", "the name that results show, and what is fetched from the Hugging Face hub; vLLM gets the folder"),
    _ours("checkpoint_path", "where the weights are, a folder or an object store's prefix; vLLM gets the folder"),
    _renamed("num_shards", "tensor_parallel_size", "where that is not given; both given and different is refused"),
    _renamed("max_context_length", "max_model_len", "older name; both given and different is refused"),
    _same("response_role", "role of the message that answers a chat record"),
    _ours("labels", "on every Kubernetes object of the job; the job's own labels win"),
)
"""Every field of ``model_config``, in the contract's order."""

FIELD_OF: dict[str, EngineField] = {field.name: field for field in ENGINE_FIELDS}
"""The same by the field's name."""


def fields_that_become(becomes: Becomes) -> tuple[EngineField, ...]:
    """Those fields to which that happens, in the contract's order."""
    return tuple(field for field in ENGINE_FIELDS if field.becomes is becomes)
