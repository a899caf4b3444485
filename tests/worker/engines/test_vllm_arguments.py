"""From ``model_config`` to vLLM's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.engine_fields import Becomes, fields_that_become
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig, CreateBatchCompletionsV1Request
from airflow_llmengine.worker.engines.spanning import NodePlace
from airflow_llmengine.worker.engines.vllm_arguments import (
    TRANSLATIONS,
    command_line,
    engine_arguments,
    node_arguments,
    served_name,
)
from airflow_llmengine.worker.weights.model_source import ModelSource

SOURCE = ModelSource(Path("/models/small"), None)
ALWAYS = {"model": "/models/small", "served_model_name": "org/name"}


def arguments(**fields: Any) -> dict[str, Any]:
    model = CreateBatchCompletionsV1ModelConfig.model_validate({"model": "org/name", **fields})
    return engine_arguments(model, SOURCE)


def test_nothing_is_passed_that_was_not_given() -> None:
    assert arguments() == ALWAYS
    assert arguments(labels={"team": "data"}, checkpoint_path="/models/small", max_model_len=None) == ALWAYS


def test_the_served_name() -> None:
    assert arguments(served_model_name="small")["served_model_name"] == "small"
    assert served_name(CreateBatchCompletionsV1ModelConfig(model="org/name")) == "org/name"


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({"max_model_len": 512}, {"max_model_len": 512}),
        ({"max_context_length": 512}, {"max_model_len": 512}),
        ({"max_context_length": 512, "max_model_len": 512}, {"max_model_len": 512}),
        ({"num_shards": 2}, {"tensor_parallel_size": 2}),
        ({"num_shards": 2, "tensor_parallel_size": 2}, {"tensor_parallel_size": 2}),
        ({"cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8"}),
        ({"disable_log_requests": True}, {"enable_log_requests": False}),
        ({"disable_log_requests": False}, {"enable_log_requests": True}),
        ({"enforce_eager": False}, {"enforce_eager": False}),
        ({"dtype": "bfloat16", "seed": 0}, {"dtype": "bfloat16", "seed": 0}),
        ({"chat_template": "{{ messages }}"}, {"chat_template": "{{ messages }}"}),
        ({"limit_mm_per_prompt": "image=2, video=0"}, {"limit_mm_per_prompt": {"image": 2, "video": 0}}),
        ({"limit_mm_per_prompt": '{"image": 2}'}, {"limit_mm_per_prompt": {"image": 2}}),
        ({"mm_processor_kwargs": {"num_crops": 4}}, {"mm_processor_kwargs": {"num_crops": 4}}),
        ({"swap_space": 1.5}, {"kv_offloading_size": 1.5}),
        ({"swap_space": 2, "num_shards": 4}, {"kv_offloading_size": 8, "tensor_parallel_size": 4}),
        (
            {"swap_space": 2, "tensor_parallel_size": 2, "pipeline_parallel_size": 3},
            {"kv_offloading_size": 12, "tensor_parallel_size": 2, "pipeline_parallel_size": 3},
        ),
        ({"skip_tokenizer_init": True}, {"skip_tokenizer_init": True}),
        ({"response_role": "bot"}, {"response_role": "bot"}),
        (
            {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
            {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
        ),
        # They ask for nothing.
        ({"rope_scaling": {}, "limit_mm_per_prompt": "", "swap_space": 0, "override_neuron_config": {}}, {}),
    ],
    ids=str,
)
def test_what_was_given_is_passed_under_vllms_name(given: dict[str, Any], passed: dict[str, Any]) -> None:
    assert arguments(**given) == {**ALWAYS, **passed}


@pytest.mark.parametrize("field", [field.name for field in fields_that_become(Becomes.REFUSED)])
def test_what_cannot_be_passed_is_refused_and_not_dropped(field: str) -> None:
    kind = str(CreateBatchCompletionsV1ModelConfig.model_fields[field].annotation)
    value = next(value for name, value in {"dict": {"a": "b"}, "int": 3, "str": "x"}.items() if name in kind)
    with pytest.raises(ValueError, match=f"model_config.{field}: vLLM no longer has it"):
        arguments(**{field: value})


def test_what_is_translated_has_its_translation() -> None:
    assert set(TRANSLATIONS) == {field.name for field in fields_that_become(Becomes.TRANSLATED)}


def test_a_rope_scaling_keeps_what_the_model_says_of_rope(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"rope_theta": 100000, "max_position_embeddings": 4096}')
    model = CreateBatchCompletionsV1ModelConfig.model_validate(
        {"model": "org/name", "rope_scaling": {"type": "yarn", "factor": 4}}
    )
    assert engine_arguments(model, ModelSource(tmp_path, None))["hf_overrides"] == {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4,
            "rope_theta": 100000,
            "original_max_position_embeddings": 4096,
        },
        "max_position_embeddings": 16384,
    }


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[", r"the model's config.json can't be read \(JSONDecodeError\)"),
        (None, r"the model's config.json can't be read \(FileNotFoundError\)"),
        (
            '{"rope_parameters": {"full_attention": {}}}',
            "RoPE for each kind of its layers: give hf_overrides in engine",
        ),
    ],
)
def test_a_rope_scaling_that_can_not_be_laid_over_the_model_is_refused(
    tmp_path: Path, config: str | None, said: str
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    model = CreateBatchCompletionsV1ModelConfig.model_validate(
        {"model": "org/name", "rope_scaling": {"rope_type": "linear", "factor": 4}}
    )
    with pytest.raises(ValueError, match=f"model_config.rope_scaling: .*{said}"):
        engine_arguments(model, ModelSource(tmp_path, None))


def test_the_command_line() -> None:
    assert command_line(
        {"model": "-odd", "enforce_eager": True, "trust_remote_code": False, "mm_processor_kwargs": {"a": 1}, "seed": 0}
    ) == ["--model=-odd", "--enforce-eager", "--no-trust-remote-code", '--mm-processor-kwargs={"a": 1}', "--seed=0"]
    assert command_line({"cudagraph_capture_sizes": [1, 2], "ignore_patterns": ["a b", "c"]}) == [
        *("--cudagraph-capture-sizes", "1", "2"),
        *("--ignore-patterns", "a b", "c"),
    ]


def test_the_tokenizer_is_the_one_that_was_fetched() -> None:
    model = CreateBatchCompletionsV1ModelConfig.model_validate({"model": "org/name", "tokenizer": "org/tokenizer"})
    source = ModelSource(Path("/models/small"), None, Path("/cache/tokenizer"))
    assert engine_arguments(model, source)["tokenizer"] == "/cache/tokenizer"
    own = CreateBatchCompletionsV1ModelConfig.model_validate({"model": "org/name", "tokenizer_revision": "v2"})
    assert engine_arguments(own, source)["tokenizer"] == "/cache/tokenizer"


@pytest.mark.parametrize(
    ("fields", "model", "ranks"),
    [
        ({"gpus": 8}, {}, (8, 2)),
        ({}, {}, (1, 2)),
        ({"gpus": 4}, {"num_shards": 8, "pipeline_parallel_size": 1}, (8, 1)),
        ({}, {"tensor_parallel_size": 2}, (2, 2)),
    ],
)
def test_an_engine_that_spans_nodes(fields: dict[str, Any], model: dict[str, Any], ranks: tuple[int, int]) -> None:
    request = CreateBatchCompletionsV1Request.model_validate(
        {"output_data_path": "out", "nodes_per_worker": 2, "model_config": {"model": "m", **model}, **fields}
    )
    place = NodePlace(rank=1, nodes=2, leader="10.0.0.7", port=29491, address="10.0.0.8")
    assert node_arguments(request, place) == {
        "distributed_executor_backend": "mp",
        "tensor_parallel_size": ranks[0],
        "pipeline_parallel_size": ranks[1],
        "nnodes": 2,
        "node_rank": 1,
        "master_addr": "10.0.0.7",
        "master_port": 29491,
    }
