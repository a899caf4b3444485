from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.hardware.quantization import Quantization, quantization_of, requested_quantization


def read(layers: int = 4, **config: Any) -> Quantization:
    quantization = quantization_of({"quantization_config": config}, layers)
    assert quantization is not None
    return quantization


@pytest.mark.parametrize(
    ("config", "bits", "multiple"),
    [
        # A scale of 16 bits and a zero point of as many as a weight has, for each group.
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128, 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 8 + 24 / 32, 32),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4, 1),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 4 + 20 / 64, 64),
        ({"quant_method": "awq", "w_bit": 4, "group_size": 128}, 4 + 20 / 128, 128),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8, 128),
        ({"quant_method": "fp8"}, 8, 1),
        ({"quant_method": "fbgemm_fp8"}, 8, 1),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8, 1),
        ({"quant_algo": "NVFP4"}, 4.5, 16),
        ({"quant_method": "mxfp4"}, 4.25, 1),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5, 1),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8, 1),
        ({"quant_method": "of_tomorrow"}, 16, 1),
    ],
)
def test_a_weight_takes_its_bits_and_its_part_of_a_scale(config: dict[str, Any], bits: float, multiple: int) -> None:
    quantization = read(**config)
    assert quantization.bytes_per_weight * 8 == pytest.approx(bits)
    assert quantization.multiple == multiple


@pytest.mark.parametrize(
    ("weights", "bits", "multiple"),
    [
        ({"num_bits": 4, "strategy": "group", "group_size": 128}, 4 + 20 / 128, 128),
        ({"num_bits": 8, "strategy": "channel", "group_size": None}, 8, 1),
        ({"num_bits": 8, "strategy": "block", "block_structure": [128, 128]}, 8, 128),
    ],
)
def test_compressed_tensors_say_it_by_groups(weights: dict[str, Any], bits: float, multiple: int) -> None:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}, "group_1": {"weights": None}}
    quantization = read(quant_method="compressed-tensors", config_groups=groups, ignore=["lm_head"])
    assert quantization.bytes_per_weight * 8 == pytest.approx(bits)
    assert quantization.multiple == multiple
    assert (quantization.plain_attention, quantization.plain_mlp) == (0, 0)


@pytest.mark.parametrize(
    ("names", "attention", "mlp"),
    [
        (None, 0, 0),
        (["lm_head"], 0, 0),
        (["visual.blocks.0.attn.qkv"], 0, 0),
        (
            ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.3.mlp.up_proj"],
            0.25,
            0.25,
        ),
        (["re:.*self_attn.*"], 1, 0),
        (["self_attn", "mlp"], 1, 1),
    ],
)
def test_what_is_left_as_it_is_is_counted_by_layers(names: list[str] | None, attention: float, mlp: float) -> None:
    quantization = read(quant_method="fp8", modules_to_not_convert=names)
    assert (quantization.plain_attention, quantization.plain_mlp) == (attention, mlp)


@pytest.mark.parametrize("config", [{}, {"quantization_config": None}, {"quantization_config": []}])
def test_a_model_without_quantization(config: dict[str, Any]) -> None:
    assert quantization_of(config, 4) is None


def test_what_vllm_quantizes_while_it_loads() -> None:
    asked = {name: requested_quantization(name, None) for name in ("fp8", "bitsandbytes", "experts_int8", "awq")}
    sizes = {name: each and (each.bytes_per_weight, each.parts) for name, each in asked.items()}
    assert sizes == {
        "fp8": (1.0, "all"),
        "bitsandbytes": (0.5625, "all"),
        "experts_int8": (1.0, "experts"),
        # It only says what the checkpoint must be, and its config does not say so.
        "awq": None,
    }
    stored = read(quant_method="awq", bits=4, group_size=128)
    assert requested_quantization("fp8", stored) == stored
