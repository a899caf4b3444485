"""A config comes with a model, from whoever made that: whatever it holds, it is understood or refused."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_llmengine.spec.hardware.inference import Model, infer_gpus, infer_without_gpus
from airflow_llmengine.spec.hardware.model_facts import ModelFactsError, model_facts
from airflow_llmengine.spec.validation import RequestInvalidError
from tests.spec.hardware.models import MODELS
from tests.spec.hardware.requests import ALL, a_request

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars | st.sampled_from([0, 1, 2, 3, 2**39, 2**64, -1, math.inf, -math.inf, math.nan]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted(
    {name for model in MODELS.values() for name in model.config} | {"text_config", "vision_config", "layer_types"}
)
NESTED = {
    "rope_scaling": ["type", "rope_type", "factor", "original_max_position_embeddings"],
    "quantization_config": ["quant_method", "bits", "group_size", "weight_block_size", "ignore", "config_groups"],
    "vision_config": ["hidden_size", "num_hidden_layers", "intermediate_size"],
}
METHODS = ["awq", "gptq", "fp8", "compressed-tensors", "mxfp4", "bitsandbytes", "modelopt", "NVFP4"]


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """The config of a real model, some of whose fields hold something else."""
    config = dict(draw(st.sampled_from(list(MODELS.values()))).config)
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=4)):
        config[name] = draw(values)
    for name in draw(st.lists(st.sampled_from(list(NESTED)), max_size=2)):
        inner = draw(st.dictionaries(st.sampled_from(NESTED[name]), values, max_size=4))
        config[name] = inner
        if name == "quantization_config":
            config[name] = {"quant_method": draw(st.sampled_from(METHODS)), **inner}
    return config


def llama(**fields: Any) -> dict[str, Any]:
    return {**MODELS["meta-llama/Llama-3.1-8B-Instruct"].config, **fields}


@settings(max_examples=200)
@example(llama(rope_scaling={"type": "yarn", "factor": math.inf}), None)
@example(llama(rope_scaling={"type": "linear", "factor": math.nan}), None)
@example(llama(rope_scaling={"type": "linear", "factor": 10**400}), None)
@example(llama(num_hidden_layers=2**39, hidden_size=2**39, intermediate_size=2**39, vocab_size=2**39), 1)
@example(llama(quantization_config={"quant_method": "gptq", "bits": 2**60, "group_size": 3}), None)
@example(llama(quantization_config={"quant_method": "gptq", "bits": -4, "group_size": 128}), None)
@example(llama(quantization_config={"quant_method": "fp8", "weight_block_size": [0, 0]}), None)
@example(llama(quantization_config={"quant_method": "fp8", "weight_block_size": [-128]}), None)
@given(configs(), st.none() | st.integers(1, 2**60))
def test_whatever_a_config_holds_it_is_understood_or_refused(config: dict[str, Any], stored: int | None) -> None:
    try:
        facts = model_facts(config, stored)
    except ModelFactsError:
        return
    model = Model(facts, "its config")
    assert infer_without_gpus(a_request("m"), model).host is not None
    try:
        hardware = infer_gpus(a_request("m"), model, ALL)
    except RequestInvalidError:
        return
    assert hardware.layout is not None
    assert hardware.layout.gpus >= 1
