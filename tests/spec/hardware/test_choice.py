from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_llmengine.spec.hardware.choice import choose
from airflow_llmengine.spec.hardware.engine_memory import EngineSettings, engine_settings, fit
from airflow_llmengine.spec.hardware.gpus import GIB, Gpu
from airflow_llmengine.spec.hardware.kv_cache import BLOCK_TOKENS, KVCache, kv_cache, wanted_bytes
from airflow_llmengine.spec.hardware.layout import Layout, Parallelism, tensor_parallel_fault
from airflow_llmengine.spec.hardware.model_facts import ModelFacts
from tests.spec.hardware.models import MODELS, facts_of
from tests.spec.hardware.requests import A10, A100, A100E, ALL, H100, SLICE, T4, a_request

models = st.sampled_from([model.facts for model in MODELS.values()])
gib = st.floats(4, 200)


def settings_of(facts: ModelFacts, **of_model: Any) -> EngineSettings:
    return engine_settings(a_request(**of_model).model_cfg, facts)


def taken(facts: ModelFacts, *offers: Gpu, asked: Parallelism | None = None, **of_model: Any) -> tuple[int, str] | None:
    found = choose(facts, settings_of(facts, **of_model), offers, asked or Parallelism()).taken
    return None if found is None else (found.layout.gpus, found.gpu.name)


# What holds whatever the numbers


@given(models, gib, st.floats(1, 4), st.integers(1, 5), st.integers(1, 512), st.integers(1, 200_000))
def test_more_memory_is_never_more_gpus(
    facts: ModelFacts, memory: float, times: float, node: int, sequences: int, length: int
) -> None:
    # vLLM's own step is larger on larger GPUs, and so given here.
    settings = settings_of(facts, max_model_len=length, max_num_seqs=sequences, max_num_batched_tokens=8192)
    less, more = (
        choose(facts, settings, [Gpu("g", int(size * GIB), per_node=2**node)], Parallelism()).taken
        for size in (memory, memory * times)
    )
    assume(less is not None)
    assert less is not None
    assert more is not None
    assert more.layout.gpus <= less.layout.gpus


@given(models, st.lists(gib, min_size=1, max_size=4), st.integers(1, 200_000), st.booleans())
def test_what_is_taken_really_fits_and_what_was_passed_over_did_not(
    facts: ModelFacts, memories: list[float], length: int, priced: bool
) -> None:
    settings = settings_of(facts, max_model_len=length)
    price = 1.0 if priced else None
    offers = [Gpu(f"g{index}", int(size * GIB), price=price) for index, size in enumerate(memories)]
    choice = choose(facts, settings, offers, Parallelism())
    found = choice.taken
    if found is None:
        assert not any(each.fit and each.fit.starts for each in choice.tried)
        return
    assert found.weights + found.reserve + found.needed <= found.budget <= found.gpu.memory
    assert found.longest >= length
    layout = found.layout
    assert tensor_parallel_fault(facts, settings.quantization, layout.tensor) is None
    assert layout.tensor * layout.pipeline == layout.gpus * layout.nodes
    if found.fits and not priced:
        before = choice.tried[: [each.fit for each in choice.tried].index(found)]
        assert not any(each.fit and each.fit.fits for each in before)


@given(models, st.sampled_from([1, 2, 4, 8]), st.integers(1, 200_000))
def test_a_sequence_as_long_as_is_said_to_fit_is_the_longest(facts: ModelFacts, gpus: int, length: int) -> None:
    settings = settings_of(facts, max_model_len=length)
    found = fit(facts, settings, H100, Layout(1, gpus, 1, gpus))
    if found.longest:
        assert fit(facts, replace(settings, max_length=found.longest), H100, found.layout).starts
    assert not fit(facts, replace(settings, max_length=found.longest + BLOCK_TOKENS), H100, found.layout).starts


@given(models, st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 3, 4]))
def test_more_ranks_never_hold_more_each(facts: ModelFacts, tensor: int, stages: int) -> None:
    settings = settings_of(facts)
    one = fit(facts, settings, H100, Layout(1, tensor * stages, tensor, stages))
    twice = fit(facts, settings, H100, Layout(1, 2 * tensor * stages, 2 * tensor, stages))
    assert twice.weights <= one.weights
    assert twice.needed <= one.needed


# The KV cache


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        # Two for each of K and V, for each KV head and layer.
        ("Llama-3.1-8B-Instruct", 32 * 8 * 128 * 4),
        ("Llama-3.1-70B-Instruct", 80 * 8 * 128 * 4),
        ("SmolLM2-1.7B-Instruct", 24 * 32 * 64 * 4),
        # One vector of 512 and 64 numbers for all heads.
        ("DeepSeek-R1", 61 * 576 * 2),
    ],
)
def test_a_token_takes_what_all_layers_keep_of_it(name: str, bytes_per_token: int) -> None:
    cache = kv_cache(facts_of(name), number_bytes=2, tensor_parallel=1, pipeline_parallel=1, step_tokens=8192)
    assert (cache.full, cache.windowed) == (bytes_per_token, 0)


def test_heads_are_shared_until_each_rank_has_one_and_mla_is_not() -> None:
    def full(name: str, ranks: int) -> float:
        facts = facts_of(name)
        return kv_cache(facts, number_bytes=2, tensor_parallel=ranks, pipeline_parallel=1, step_tokens=1).full

    llama = full("Llama-3.1-8B-Instruct", 1)
    assert [llama / full("Llama-3.1-8B-Instruct", ranks) for ranks in (2, 8, 16)] == [2, 8, 8]
    assert full("DeepSeek-R1", 8) == full("DeepSeek-R1", 1)


def test_layers_with_a_window_keep_that_and_one_step() -> None:
    cache = kv_cache(facts_of("gpt-oss-20b"), number_bytes=2, tensor_parallel=1, pipeline_parallel=1, step_tokens=8192)
    layer = 8 * 64 * 4
    assert (cache.full, cache.windowed, cache.window) == (12 * layer, 12 * layer, 128 + 8192)
    assert cache.sequence(1000) == 24 * layer * (1008 + 16)
    assert cache.sequence(131072) == 12 * layer * (131072 + 16) + 12 * layer * (128 + 8192 + 32)


def test_a_cache_of_eight_bits_takes_half() -> None:
    facts = facts_of("Llama-3.1-8B-Instruct")
    needed = [
        fit(facts, settings_of(facts, **given), H100, Layout(1, 1, 1, 1)).needed
        for given in ({}, {"cache_dtype": "auto"}, {"cache_dtype": "fp8_e4m3"}, {"dtype": "float32"})
    ]
    assert [needed[0] / each for each in needed] == [1, 1, 2, 0.5]


def test_a_batch_wants_some_typical_sequences_and_not_as_many_of_the_longest() -> None:
    cache = KVCache(full=1.0, windowed=0.0, window=0)
    assert wanted_bytes(cache, 131072, None) == 32 * (1024 + 16)
    assert wanted_bytes(cache, 256, None) == 32 * (256 + 16)
    assert wanted_bytes(cache, 131072, 4) == 4 * (1024 + 16)
    assert wanted_bytes(cache, 131072, 256) == 256 * (1024 + 16)


# What is taken


def test_a_small_model_of_long_context_does_not_get_a_whole_node() -> None:
    facts = facts_of("Llama-3.1-8B-Instruct")
    assert facts.max_length == 131072
    assert taken(facts, H100) == (1, "nvidia-hopper-h100")
    assert taken(facts, A10, H100) == (2, "nvidia-ampere-a10")


def test_the_first_type_in_order_is_taken_unless_there_are_prices() -> None:
    facts = facts_of("Llama-3.1-70B-Instruct")
    assert taken(facts, *ALL, max_model_len=8192) == (8, "nvidia-ampere-a100")
    assert taken(facts, H100, *ALL, max_model_len=8192) == (4, "nvidia-hopper-h100")
    priced = [replace(A100, price=4.1), replace(H100, price=6.9)]
    assert taken(facts, *priced, max_model_len=8192) == (4, "nvidia-hopper-h100")
    # Without a price of each there is nothing to compare.
    assert taken(facts, A100, replace(H100, price=0.1), max_model_len=8192) == (8, "nvidia-ampere-a100")


def test_no_more_are_taken_than_a_node_has() -> None:
    facts = facts_of("Llama-3.1-70B-Instruct")
    assert taken(facts, replace(A100, per_node=4), H100, max_model_len=8192) == (4, "nvidia-hopper-h100")
    assert taken(facts, replace(A100, per_node=4), max_model_len=8192) is None


def test_slices_do_not_add_up() -> None:
    assert taken(facts_of("Mistral-7B-Instruct-v0.3"), SLICE) == (1, "nvidia-hopper-h100-3g40gb")
    assert taken(facts_of("Qwen3-30B-A3B"), SLICE) is None
    choice = choose(facts_of("Qwen3-30B-A3B"), settings_of(facts_of("Qwen3-30B-A3B")), [SLICE], Parallelism(gpus=2))
    assert "slices of a GPU can't share a model" in (choice.tried[0].fault or "")


def test_a_gpu_that_can_not_compute_with_the_weights_is_passed_over() -> None:
    gpt_oss = facts_of("gpt-oss-20b")
    assert taken(gpt_oss, T4, A10) == (1, "nvidia-ampere-a10")
    assert taken(gpt_oss, T4) is None
    # vLLM falls back to float16 there, unless bfloat16 is asked for.
    smollm = facts_of("SmolLM2-1.7B-Instruct")
    assert taken(smollm, T4, A10) == (1, "nvidia-tesla-t4")
    assert taken(smollm, T4, A10, dtype="bfloat16") == (1, "nvidia-ampere-a10")
    # Of a type that only the cluster knows it is not known, and taken to be enough.
    assert taken(gpt_oss, Gpu("nvidia-l4", 22 * GIB)) == (1, "nvidia-l4")


def test_where_a_batch_has_room_nowhere_the_most_room_is_taken_on_which_it_starts() -> None:
    facts = facts_of("Llama-3.1-8B-Instruct")
    single = replace(A10, per_node=1)
    assert taken(facts, single, max_model_len=8192) == (1, "nvidia-ampere-a10")
    assert taken(facts, single, replace(A100, per_node=1), max_model_len=8192) == (1, "nvidia-ampere-a100")
    assert taken(facts, single, max_model_len=32768) is None
    # -1: as long as there is room for.
    assert taken(facts, single, max_model_len=-1) == (1, "nvidia-ampere-a10")


@pytest.mark.parametrize("backwards", [False, True])
def test_of_several_on_which_it_merely_starts_the_one_with_most_room_is_taken(backwards: bool) -> None:
    single = [replace(gpu, per_node=1) for gpu in (A10, A100)]
    offers = single[::-1] if backwards else single
    found = taken(facts_of("Llama-3.1-8B-Instruct"), *offers, max_model_len=8192, max_num_seqs=300)
    assert found == (1, "nvidia-ampere-a100")


def test_more_sequences_that_are_asked_for_get_their_room() -> None:
    facts = facts_of("Llama-3.1-8B-Instruct")
    assert taken(facts, A10, max_model_len=8192, max_num_seqs=8) == (1, "nvidia-ampere-a10")
    assert taken(facts, A10, max_model_len=8192, max_num_seqs=256) == (4, "nvidia-ampere-a10")


def test_a_share_of_the_memory_that_is_asked_for_counts() -> None:
    facts = facts_of("Llama-3.1-8B-Instruct")
    assert taken(facts, A100E, gpu_memory_utilization=0.92) == (1, "nvidia-ampere-a100e")
    assert taken(facts, A100E, gpu_memory_utilization=0.4) == (2, "nvidia-ampere-a100e")


def test_weights_that_are_quantized_while_they_are_loaded_need_less() -> None:
    facts = facts_of("Mistral-7B-Instruct-v0.3")
    assert taken(facts, T4, max_model_len=8192) == (2, "nvidia-tesla-t4")
    assert taken(facts, T4, max_model_len=8192, quantization="bitsandbytes") == (1, "nvidia-tesla-t4")
