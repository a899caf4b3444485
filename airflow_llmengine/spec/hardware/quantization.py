"""What a weight takes where it is quantized, and which GPUs can compute with it.

Read from ``quantization_config`` as the quantizers write it. Minimum compute capabilities are those that vLLM's own
quantization classes name; what it runs as weight-only on older GPUs (FP8 on Ampere) is the same size there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

_LAYER = re.compile(r"layers\.(\d+)\.")

_MINIMUM_CAPABILITY = {
    "fp8": 7.5,
    "fbgemm_fp8": 8.0,
    "awq": 7.5,
    "mxfp4": 8.0,
    "experts_int8": 8.0,
    "modelopt": 7.5,
    "modelopt_fp4": 7.5,
    "torchao": 7.5,
}
_OTHERWISE = 7.0

_LARGEST = 2**20
"""No group of weights is larger."""


class Quantization(BaseModel):
    """How the large matrices of a model are stored. Embeddings, head, norms and routers are not quantized."""

    model_config = ConfigDict(frozen=True)

    method: str
    """vLLM's name of it."""
    bytes_per_weight: float
    """With scales and zero points."""
    parts: Literal["all", "experts"] = "all"
    """Which matrices: all of attention and MLP, or those of a mixture's experts only."""
    multiple: int = 1
    """A rank's share of the inner size must be a multiple of this: a group or block of weights has one scale."""
    plain_attention: float = 0.0
    """Share of the attention layers that is left as it is."""
    plain_mlp: float = 0.0
    """Share of the MLP layers that is left as it is."""

    @property
    def capability(self) -> float:
        """The least compute capability of a GPU that can run it."""
        return _MINIMUM_CAPABILITY.get(self.method, _OTHERWISE)


def quantization_of(config: Mapping[str, Any], layers: int) -> Quantization | None:
    """Read the quantization that a checkpoint was stored with; None if there is none.

    Args:
        config: The model's config, or the part of it that is the language model's.
        layers: Number of layers.
    """
    given = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(given, Mapping):
        return None
    method = str(given.get("quant_method") or given.get("quant_algo") or "").lower().replace("-", "_")
    plain = (
        _names(given.get("modules_to_not_convert")) + _names(given.get("ignore")) + _names(given.get("exclude_modules"))
    )
    shares = {
        "plain_attention": _share(plain, "attn", layers),
        "plain_mlp": max(_share(plain, "mlp", layers), _share(plain, "experts", layers)),
    }
    if method in ("awq", "gptq", "auto_round", "auto_awq", "intel/auto_round"):
        bits, group = _bits(given.get("bits") or given.get("w_bit"), 4), _number(given.get("group_size"), 128)
        return Quantization(method=method, **_grouped(bits, group), **shares)
    if method in ("compressed_tensors", "compressed-tensors"):
        return Quantization(method=method, **_compressed(given), **shares)
    if method == "mxfp4":
        # gpt-oss: attention, router and embeddings stay as they are, whatever the list says.
        return Quantization(method=method, bytes_per_weight=0.5 + 1 / 32, parts="experts")
    if method == "bitsandbytes":
        four = bool(given.get("load_in_4bit", not given.get("load_in_8bit")))
        return Quantization(method=method, bytes_per_weight=0.5 + 4 / 64 if four else 1.0, **shares)
    if "fp4" in method:
        return Quantization(method="modelopt_fp4", bytes_per_weight=0.5 + 1 / 16, multiple=16, **shares)
    if "fp8" in method or method in ("modelopt", "quark", "torchao"):
        multiple = _block(given.get("weight_block_size"))
        return Quantization(method=method, bytes_per_weight=1.0, multiple=multiple, **shares)
    # Not known: as large as it can be.
    return Quantization(method=method or "unknown", bytes_per_weight=2.0)


def requested_quantization(method: str, stored: Quantization | None) -> Quantization | None:
    """What ``model_config.quantization`` makes of weights: those that are quantized already stay as they are.

    Only what vLLM quantizes by itself while it loads changes anything; other names say what the checkpoint holds.
    """
    if stored is not None:
        return stored
    name = method.lower()
    if name == "bitsandbytes":
        return Quantization(method=name, bytes_per_weight=0.5 + 4 / 64)
    if name == "experts_int8":
        return Quantization(method=name, bytes_per_weight=1.0, parts="experts")
    if name.startswith("fp8") or name in ("int8_per_channel_weight_only", "mxfp8"):
        return Quantization(method="fp8", bytes_per_weight=1.0 + (1 / 32 if name == "mxfp8" else 0))
    return None


def _grouped(bits: int, group: int) -> dict[str, Any]:
    """Weights of ``bits`` bits; each group has a scale of two bytes and a zero point of as many bits as a weight."""
    scales = (2 + bits / 8) / group if group > 0 else 0.0
    return {"bytes_per_weight": bits / 8 + scales, "multiple": max(group, 1)}


def _compressed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The largest of the groups of a compressed-tensors checkpoint."""
    groups = given.get("config_groups")
    found = [{"bytes_per_weight": 2.0, "multiple": 1}] if not isinstance(groups, Mapping) or not groups else []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            continue
        bits = _bits(weights.get("num_bits"), 8)
        if weights.get("strategy") == "block":
            found.append({"bytes_per_weight": bits / 8, "multiple": _block(weights.get("block_structure"))})
        else:
            size = weights.get("group_size")
            found.append(_grouped(bits, _number(size, -1) if size is not None else -1))
    return max(found, key=lambda each: each["bytes_per_weight"], default={"bytes_per_weight": 2.0, "multiple": 1})


def _share(names: Sequence[str], part: str, layers: int) -> float:
    """Of how many layers a part is named as left alone; a pattern without a layer's number means all."""
    mentioned = [name for name in names if part in name.lower()]
    numbers = {match.group(1) for name in mentioned if (match := _LAYER.search(name))}
    if any(not _LAYER.search(name) and not name.startswith(("visual", "vision", "model.visual")) for name in mentioned):
        return 1.0
    return min(1.0, len(numbers) / layers)


def _names(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _bits(value: Any, default: int) -> int:
    number = _number(value, default)
    return number if 0 < number <= 64 else default


def _block(value: Any) -> int:
    """The side of a block of weights; 1: there are none."""
    return max(1, _number(value[0], 1)) if isinstance(value, list) and value else 1


def _number(value: Any, default: int) -> int:
    """A number of bits, or of weights in a group; -1 is a group of all."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and (value == -1 or 0 < value < _LARGEST)
    return value if is_number else default
