"""From ``model_config`` to vLLM's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig, CreateBatchCompletionsV1Request
from airflow_llmengine.worker.engines import vllm_arguments
from airflow_llmengine.worker.engines.spanning import NodePlace
from airflow_llmengine.worker.engines.vllm_arguments import (
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
        # They ask for nothing.
        ({"rope_scaling": {}, "limit_mm_per_prompt": ""}, {}),
    ],
    ids=str,
)
def test_what_was_given_is_passed_under_vllms_name(given: dict[str, Any], passed: dict[str, Any]) -> None:
    assert arguments(**given) == {**ALWAYS, **passed}


@pytest.mark.parametrize(
    "field",
    [
        {"rope_scaling": {"factor": 2}},
        {"swap_space": 4},
        {"limit_mm_per_prompt": "image=2"},
        {"quantization_param_path": "scales.json"},
    ],
    ids=str,
)
def test_what_cannot_be_passed_is_refused_and_not_dropped(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"model_config.{next(iter(field))}: "):
        arguments(**field)


def test_every_field_is_passed_renamed_refused_or_not_for_the_engine() -> None:
    """A field that is accepted and then ignored would be a defect."""
    sample: dict[str, Any] = {"dict": {"a": "b"}, "bool": True, "int": 3, "float": 0.5, "str": "x"}
    for name, field in CreateBatchCompletionsV1ModelConfig.model_fields.items():
        if name in vllm_arguments._NOT_FOR_THE_ENGINE:
            continue
        value = next(value for kind, value in sample.items() if kind in str(field.annotation))
        try:
            passed = arguments(**{name: value})
        except ValueError:
            assert name in vllm_arguments._UNTRANSLATED
        else:
            assert passed != ALWAYS, name


def test_the_command_line() -> None:
    assert command_line(
        {"model": "-odd", "enforce_eager": True, "trust_remote_code": False, "mm_processor_kwargs": {"a": 1}, "seed": 0}
    ) == ["--model=-odd", "--enforce-eager", "--no-trust-remote-code", '--mm-processor-kwargs={"a": 1}', "--seed=0"]


def test_the_tokenizer_is_the_one_that_was_fetched() -> None:
    model = CreateBatchCompletionsV1ModelConfig.model_validate({"model": "org/name", "tokenizer": "org/tokenizer"})
    source = ModelSource(Path("/models/small"), None, Path("/cache/tokenizer"))
    assert engine_arguments(model, source)["tokenizer"] == "/cache/tokenizer"


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
