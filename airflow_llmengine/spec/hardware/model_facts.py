"""What a model's ``config.json`` says of its size and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from airflow_llmengine.spec.hardware.quantization import Quantization, quantization_of

_LARGEST = 2**40
"""No number of a model is larger; one that is would only make the arithmetic overflow."""

_DTYPE_BYTES = {"float32": 4, "float": 4, "float64": 8, "float16": 2, "half": 2, "bfloat16": 2}

_WITHOUT_GATE = frozenset(
    {"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mpt", "nemotron", "opt", "phi", "starcoder2"}
)
"""Types of models whose MLP has two matrices; others have a third, the gate."""

_SCALED_ALREADY = frozenset(
    {"deepseek_llama_scaling", "deepseek_yarn", "default", "llama3", "longrope", "mrope", "su", "yarn"}
)
"""Kinds of RoPE scaling whose ``max_position_embeddings`` is the scaled length already, as vLLM (0.32) has it."""

_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Names of the longest sequence; of several the least counts, as vLLM (0.32) has it."""


class ModelFactsError(ValueError):
    """The config is none of a language model, or of none that is known; the message says what it lacks."""


class Mixture(BaseModel):
    """The experts of a mixture (MoE)."""

    model_config = ConfigDict(frozen=True)

    experts: int
    """In each layer that has any."""
    experts_per_token: int
    intermediate_size: int
    """Of one expert."""
    shared_intermediate_size: int = 0
    """Of the experts that every token passes, together."""
    layers: int
    """Layers that have experts."""


class LatentAttention(BaseModel):
    """DeepSeek's attention (MLA), whose cache holds one compressed vector for all heads."""

    model_config = ConfigDict(frozen=True)

    kv_rank: int
    query_rank: int | None
    nope_size: int
    rope_size: int
    value_size: int
    index_bytes: int = 0
    """Of the cache for each token and layer, for the index of sparse attention (DeepSeek V3.2)."""


class ModelFacts(BaseModel):
    """Size and shape of a model, as far as memory depends on them."""

    model_config = ConfigDict(frozen=True)

    model_type: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    intermediate_size: int
    """Of the MLP of a layer without experts."""
    gated: bool = True
    tied: bool = False
    """Whether the head is the embedding."""
    max_length: int
    """Tokens of the longest sequence, if the request does not say otherwise."""
    longest_allowed: int | None = None
    """Most tokens that a request may say; None: not known."""
    dtype_bytes: int = 2
    """Of a weight as it is stored, where it is not quantized."""
    mixture: Mixture | None = None
    latent: LatentAttention | None = None
    window: int | None = None
    """Tokens that layers with sliding attention look back."""
    windowed_layers: int = 0
    quantization: Quantization | None = None
    draft_layers: int = 0
    """Layers beyond those that are loaded, for predicting several tokens at once."""
    other_weights: int = 0
    """Weights of vision and audio encoders, estimated."""
    stored_bytes: int | None = None
    """Bytes of all weights as they are stored, where their files or their index say so."""


def model_facts(config: Mapping[str, Any], stored_bytes: int | None = None) -> ModelFacts:
    """Read a model's facts out of its config.

    Args:
        config: The parsed ``config.json``.
        stored_bytes: Bytes of the weights: ``metadata.total_size`` of ``model.safetensors.index.json``, or the size of
            the one file; None where they are not known, and are reckoned from the config.

    Raises:
        ModelFactsError: It says too little.
    """
    text = _text_config(config)
    layers = _required(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    hidden = _required(text, "hidden_size", "n_embd", "d_model")
    heads = _required(text, "num_attention_heads", "n_head", "n_heads", "num_heads")
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    mixture = _mixture(text, layers)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", model_type in ("gpt2", "gemma", "gemma2")))
    windowed = _windowed_layers(text)
    max_length, longest = _lengths(text)
    return ModelFacts(
        model_type=model_type,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_size=_optional(text, "head_dim") or max(1, hidden // heads),
        vocabulary=_required(text, "vocab_size"),
        intermediate_size=_optional(text, "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size") or 4 * hidden,
        gated=model_type not in _WITHOUT_GATE,
        tied=bool(tied),
        max_length=max_length,
        longest_allowed=longest,
        dtype_bytes=_DTYPE_BYTES.get(_dtype(text) or _dtype(config), 2),
        mixture=mixture,
        latent=_latent(text),
        window=_optional(text, "sliding_window") if windowed else None,
        windowed_layers=windowed,
        quantization=quantization_of(text, layers) or quantization_of(config, layers),
        draft_layers=_optional(text, "num_nextn_predict_layers") or 0,
        other_weights=_encoder_weights(config),
        stored_bytes=stored_bytes,
    )


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config; of one that hears and sees it is nested."""
    for name in ("text_config", "llm_config", "language_config"):
        nested = config.get(name)
        if isinstance(nested, Mapping) and nested:
            return nested
    thinker = config.get("thinker_config")
    return _text_config(thinker) if isinstance(thinker, Mapping) else config


def _optional(config: Mapping[str, Any], *names: str) -> int | None:
    """A positive number by the first of its names that is there."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
            return value
    return None


def _required(config: Mapping[str, Any], *names: str) -> int:
    value = _optional(config, *names)
    if value is None:
        raise ModelFactsError(f"it has no {names[0]} that is a positive number")
    return value


def _dtype(config: Mapping[str, Any]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return _optional(config, "num_key_value_heads", "num_kv_heads", "n_head_kv") or heads


def _lengths(config: Mapping[str, Any]) -> tuple[int, int | None]:
    """The longest sequence as vLLM derives it: what it takes by itself, and what it lets be asked for.

    It is the config's length, times the factor of a RoPE scaling that is not in it yet.
    """
    found = [length for name in _LENGTHS if (length := _optional(config, name)) is not None]
    # Command-R's own name for it stands above the others.
    given = _optional(config, "model_max_length") or min(found, default=None)
    if given is None:
        return 2048, None
    factor, short = 1.0, None
    for scaling in _rope_scalings(config):
        kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
        if kind in ("longrope", "su"):
            # The short one, for which the model is better, unless more is asked for.
            short = _optional(config, "original_max_position_embeddings")
        value = scaling.get("factor")
        if kind not in _SCALED_ALREADY and isinstance(value, int | float) and 0 < value < _LARGEST:
            factor = float(value)
    if "gemma3" in str(config.get("model_type")):
        factor = 1.0
    longest = max(1, min(int(given * factor), _LARGEST))
    return short or longest, longest


def _rope_scalings(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What is said of RoPE: once, or for each kind of layer."""
    given = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(given, Mapping):
        return []
    of_layers = [value for value in given.values() if isinstance(value, Mapping)]
    return of_layers or [given]


def _mixture(config: Mapping[str, Any], layers: int) -> Mixture | None:
    experts = _optional(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if experts is None or experts < 2:
        return None
    size = _optional(config, "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    if size is None:
        raise ModelFactsError("it has experts, and no moe_intermediate_size")
    shared = _optional(config, "n_shared_experts", "num_shared_experts") or 0
    plain = config.get("mlp_only_layers")
    dense = len(plain) if isinstance(plain, list) else 0
    dense += _optional(config, "first_k_dense_replace", "moe_layer_start_index") or 0
    every = _optional(config, "decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step") or 1
    return Mixture(
        experts=experts,
        experts_per_token=_optional(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k") or 1,
        intermediate_size=size,
        shared_intermediate_size=_optional(config, "shared_expert_intermediate_size") or shared * size,
        layers=max(1, (layers - min(dense, layers - 1)) // every),
    )


def _latent(config: Mapping[str, Any]) -> LatentAttention | None:
    rank = _optional(config, "kv_lora_rank")
    rope = _optional(config, "qk_rope_head_dim")
    if rank is None or rope is None:
        return None
    index = _optional(config, "index_head_dim") or 0
    return LatentAttention(
        kv_rank=rank,
        query_rank=_optional(config, "q_lora_rank"),
        nope_size=_optional(config, "qk_nope_head_dim") or 0,
        rope_size=rope,
        value_size=_optional(config, "v_head_dim") or 128,
        # One byte for each number, and a scale of four for each 128.
        index_bytes=index + 4 * (index // 128),
    )


def _windowed_layers(config: Mapping[str, Any]) -> int:
    """Layers whose cache vLLM keeps short: those that the config names one by one, or all but every so manieth."""
    kinds, layers = (
        config.get("layer_types"),
        _required(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    )
    if _optional(config, "sliding_window") is None:
        return 0
    every = _optional(config, "sliding_window_pattern", "_sliding_window_pattern")
    if not isinstance(kinds, list):
        return layers - layers // every if every else 0
    windowed = [kind for kind in kinds if kind == "sliding_attention"]
    return min(len(windowed), layers)


def _encoder_weights(config: Mapping[str, Any]) -> int:
    """Four matrices of attention and two of the MLP for each layer of an encoder."""
    weights = 0
    for name in ("vision_config", "audio_config"):
        encoder = config.get(name)
        if not isinstance(encoder, Mapping):
            continue
        hidden = _optional(encoder, "hidden_size", "embed_dim", "d_model", "width")
        layers = _optional(encoder, "num_hidden_layers", "depth", "encoder_layers", "layers")
        if hidden and layers:
            inner = _optional(encoder, "intermediate_size", "encoder_ffn_dim") or 4 * hidden
            weights += layers * (4 * hidden * hidden + 3 * hidden * inner)
    return weights
