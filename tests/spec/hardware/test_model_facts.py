from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.hardware.model_facts import ModelFactsError, model_facts
from airflow_llmengine.spec.hardware.weights import loaded_bytes, parameters, rank_bytes, stored_bytes
from tests.spec.hardware.models import MODELS, KnownModel, facts_of

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_the_parameters_are_as_many_as_the_models_authors_count(model: KnownModel) -> None:
    assert parameters(model.facts) == pytest.approx(model.parameters * 1e9, rel=2e-3)


@pytest.mark.parametrize(
    "model", [model for model in MODELS.values() if model.stored_bytes], ids=lambda model: model.name
)
def test_the_reckoned_bytes_are_those_of_the_files(model: KnownModel) -> None:
    assert stored_bytes(model_facts(model.config)) == pytest.approx(model.stored_bytes, rel=1e-2)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        # Published: "runs within 16 GB", "fits in a single 80 GB GPU", four bits and a scale for each weight.
        ("gpt-oss-20b", 13.8),
        ("gpt-oss-120b", 65.2),
        ("Qwen2.5-72B-Instruct-AWQ", 41.6),
        # Attention and the outer layers stay as they are.
        ("Llama-3.1-405B-Instruct-FP8", 487.2),
    ],
)
def test_quantized_models_are_taken_at_their_size(name: str, gigabytes: float) -> None:
    facts = facts_of(name)
    assert loaded_bytes(facts, facts.quantization) / 1e9 == pytest.approx(gigabytes, abs=0.1)


def test_what_the_files_say_goes_before_what_is_reckoned() -> None:
    llama = facts_of("Llama-3.1-8B-Instruct")
    larger = llama.model_copy(update={"stored_bytes": 2 * (llama.stored_bytes or 0)})
    assert loaded_bytes(larger, None) == pytest.approx(2 * loaded_bytes(llama, None))
    assert rank_bytes(larger, None, tensor_parallel=2, pipeline_parallel=1) == pytest.approx(
        2 * rank_bytes(llama, None, tensor_parallel=2, pipeline_parallel=1)
    )


def test_a_checkpoint_of_float32_is_loaded_in_half_of_its_bytes() -> None:
    full = model_facts({**SMALL, "torch_dtype": "float32"}, 1000)
    assert loaded_bytes(full, None) == 500
    assert loaded_bytes(full, None, plain_bytes=4) == 1000
    # transformers 5 calls it dtype.
    assert model_facts({**SMALL, "dtype": "float32"}) == model_facts({**SMALL, "torch_dtype": "float32"})


def test_the_layers_for_drafts_are_stored_and_not_loaded() -> None:
    facts = facts_of("DeepSeek-R1")
    assert stored_bytes(facts) - loaded_bytes(facts, facts.quantization) == pytest.approx(11.6e9, rel=0.05)


def test_ranks_share_what_can_be_shared_and_copy_the_rest() -> None:
    llama = facts_of("Llama-3.1-8B-Instruct")
    whole = rank_bytes(llama, None, tensor_parallel=1, pipeline_parallel=1)
    assert whole == loaded_bytes(llama, None)
    assert rank_bytes(llama, None, tensor_parallel=8, pipeline_parallel=1) == pytest.approx(whole / 8, rel=1e-6)
    # Eight KV heads for sixteen ranks: each head is there twice.
    key_value = 2 * 32 * 4096 * 1024 * 2
    sixteen = rank_bytes(llama, None, tensor_parallel=16, pipeline_parallel=1)
    assert sixteen == pytest.approx((whole - key_value) / 16 + key_value / 8, rel=1e-4)


def test_stages_share_layers_and_the_ends_hold_embedding_and_head() -> None:
    llama = facts_of("Llama-3.1-8B-Instruct")
    end = 128256 * 4096 * 2
    layers = rank_bytes(llama, None, tensor_parallel=1, pipeline_parallel=1) - 2 * end
    assert rank_bytes(llama, None, tensor_parallel=1, pipeline_parallel=2) == pytest.approx(layers / 2 + end, rel=1e-4)
    # 32 layers on three stages: one has eleven.
    assert rank_bytes(llama, None, tensor_parallel=1, pipeline_parallel=3) == pytest.approx(
        layers * 11 / 32 + end, rel=1e-4
    )


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({}, 2048),
        ({"max_position_embeddings": 8192, "max_seq_len": 4096}, 4096),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"type": "longrope", "factor": 32}}, 131072),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        ({"max_position_embeddings": 32768, "rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, 32768),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 8192),
        (
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "longrope"},
            },
            4096,
        ),
        (
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            32768,
        ),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            131072,
        ),
        ({"max_position_embeddings": 32768, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 32768),
    ],
)
def test_the_longest_sequence_is_derived_as_vllm_does(config: dict[str, Any], length: int) -> None:
    assert model_facts({**SMALL, **config}).max_length == length


def test_a_model_with_a_short_and_a_long_length_may_be_asked_for_the_long_one() -> None:
    phi = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    facts = model_facts({**SMALL, **phi, "rope_scaling": {"type": "longrope"}})
    assert (facts.max_length, facts.longest_allowed) == (4096, 131072)
    assert model_facts(SMALL).longest_allowed is None, "where the config says nothing, anything may be asked for"


def test_a_model_that_sees_has_its_language_models_config_nested() -> None:
    vision = {"hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 100}
    nested = model_facts({"model_type": "x", "text_config": {**SMALL, "model_type": "x_text"}, "vision_config": vision})
    plain = model_facts({**SMALL, "model_type": "x_text"})
    assert nested.model_copy(update={"other_weights": 0}) == plain
    assert nested.other_weights == 3 * (4 * 32 * 32 + 3 * 32 * 100)


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
@pytest.mark.parametrize("value", [None, 0, -1, "7", True, 1.5, 2**60])
def test_a_config_that_says_no_size_is_not_understood(name: str, value: Any) -> None:
    with pytest.raises(ModelFactsError, match=f"it has no {name} that is a positive number"):
        model_facts({**SMALL, name: value})


def test_older_names_of_sizes_are_known() -> None:
    facts = model_facts({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})
    assert (facts.layers, facts.hidden_size, facts.intermediate_size, facts.gated, facts.tied) == (
        12,
        768,
        3072,
        False,
        True,
    )
    # 124 million, less the positions' embedding, which is not counted.
    assert parameters(facts) == pytest.approx(124.4e6 - 1024 * 768, rel=2e-3)


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"num_local_experts": 8, "intermediate_size": 96}, 4),
        ({"n_routed_experts": 8, "moe_intermediate_size": 96, "first_k_dense_replace": 1}, 3),
        ({"num_experts": 8, "moe_intermediate_size": 96, "decoder_sparse_step": 2}, 2),
        ({"num_experts": 8, "moe_intermediate_size": 96, "mlp_only_layers": [0, 3]}, 2),
    ],
)
def test_the_layers_with_experts_are_counted(config: dict[str, Any], layers: int) -> None:
    mixture = model_facts({**SMALL, "num_hidden_layers": 4, **config}).mixture
    assert mixture is not None
    assert (mixture.experts, mixture.intermediate_size, mixture.layers) == (8, 96, layers)


@pytest.mark.parametrize(
    ("config", "windowed"),
    [
        ({"layer_types": ["sliding_attention"] * 5 + ["full_attention"]}, 5),
        ({"sliding_window_pattern": 6}, 5),
        ({"_sliding_window_pattern": 2}, 3),
        # It may be off, or be for some layers only.
        ({}, 0),
        ({"layer_types": ["sliding_attention"] * 6, "sliding_window": None}, 0),
        ({"layer_types": ["linear_attention"] * 6}, 0),
    ],
)
def test_only_layers_that_are_named_have_a_window(config: dict[str, Any], windowed: int) -> None:
    facts = model_facts({**SMALL, "num_hidden_layers": 6, "sliding_window": 1024, **config})
    assert (facts.windowed_layers, facts.window) == (windowed, 1024 if windowed else None)
