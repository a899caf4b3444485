"""From ``rope_scaling`` to what today's vLLM reads: overrides of the model's own config.

An override takes the place of all that the config says of RoPE, and what is missing then is filled with defaults that
are another model's. So what the request does not say is kept from the model's own config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Names of a language model's own config within that of one that also hears and sees."""

_KEPT = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
"""What describes the model, whatever its length is scaled to."""

_WITH_ORIGINAL = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling", "longrope", "llama3"})
"""Kinds that name the length they start from, and whose ``max_position_embeddings`` is the scaled one (vLLM 0.32)."""

_OLDER_NAMES = {"su": "longrope"}


class RopeScalingError(ValueError):
    """It can't be laid over this model's config; the message is a clause that says why."""


def rope_type(scaling: Mapping[str, Any]) -> str | None:
    """The kind of scaling, by either of the names of that field; None where it is not said."""
    kind = scaling.get("rope_type", scaling.get("type"))
    return _OLDER_NAMES.get(kind, kind) if isinstance(kind, str) and kind else None


def rope_overrides(scaling: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model's config is overridden.

    Args:
        scaling: ``rope_scaling`` of the request, not empty.
        config: The model's ``config.json``.

    Returns:
        A value of vLLM's ``hf_overrides``.

    Raises:
        RopeScalingError: The model has RoPE for each kind of its layers, or the kind of scaling is not said.
    """
    kind = rope_type(scaling)
    if kind is None:
        raise RopeScalingError("names no rope_type")
    for name in _NESTED:
        nested = config.get(name)
        if isinstance(nested, Mapping) and nested:
            return {name: rope_overrides(scaling, nested)}
    own = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(own, Mapping) or any(isinstance(value, Mapping) for value in own.values()):
        raise RopeScalingError("the model has RoPE for each kind of its layers")
    parameters = {name: value for name, value in scaling.items() if name != "type"} | {"rope_type": kind}
    for name in _KEPT:
        value = own.get(name, config.get(name))
        if value is not None:
            parameters.setdefault(name, value)
    length = _length(config.get("max_position_embeddings"))
    if kind not in _WITH_ORIGINAL or length is None:
        return {"rope_parameters": parameters}
    original = own.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
    parameters.setdefault("original_max_position_embeddings", original or length)
    return {"rope_parameters": parameters, "max_position_embeddings": scaled_length(parameters, length)}


def scaled_length(scaling: Mapping[str, Any], length: int) -> int:
    """The longest sequence with a scaling, in tokens.

    Args:
        scaling: ``rope_scaling`` of the request.
        length: The longest without it.
    """
    factor, kind = scaling.get("factor"), rope_type(scaling)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 2**20 or kind is None:
        return length
    if kind not in _WITH_ORIGINAL:
        return length if kind in ("default", "mrope") else int(length * factor)
    return max(length, int((_length(scaling.get("original_max_position_embeddings")) or length) * factor))


def _length(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else None
